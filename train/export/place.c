/* Decides where an export is written, and which files it may replace. */
#include "export/place.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "architecture/folder.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/unfinished.h"
#include "files/file.h"

/* ---- whether the folder's present files may be replaced ---- */

static int is_exported(const char *name) {
  size_t length = strlen(name);
  for (int i = 0; i < AD_PRETRAINED_FILES; i++)
    if (!strcmp(name, ad_pretrained_files[i])) return 1;
  return !strncmp(name, "model", 5) && ((length > 12 && !strcmp(name + length - 12, ".safetensors")) ||
                                        !strcmp(name, "model.safetensors.index.json"));
}

/* Writes to `out` the first name in the folder that is no file of an export (or, with `any`, the first name), or "" if
 * there is none. */
static ad_status find_name(const char *path, int any, char *out, size_t size) {
  DIR *folder = opendir(path);
  *out = 0;
  if (!folder)
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  for (const struct dirent *entry = readdir(folder); entry && !*out; entry = readdir(folder))
    if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && (any || !is_exported(entry->d_name)))
      snprintf(out, size, "%s", entry->d_name);
  closedir(folder);
  return AD_OK;
}

/* Returns AD_INVALID if the folder exists and may not be replaced. */
static ad_status check_free(const char *folder, int overwrite) {
  struct stat found;
  char name[256];
  if (lstat(folder, &found)) return AD_OK;
  if (!S_ISDIR(found.st_mode))
    return ad_fail(AD_INVALID, "%s: this path exists and is not a folder; name another path", folder);
  AD_TRY(find_name(folder, 1, name, sizeof name));
  if (!*name) return AD_OK;
  if (!overwrite)
    return ad_fail(
        AD_INVALID,
        "%s: the folder is not empty (it has %s); name another folder, or replace an earlier export with --overwrite",
        folder, name);
  AD_TRY(find_name(folder, 0, name, sizeof name));
  return *name ? ad_fail(AD_INVALID,
                         "%s: the folder cannot be replaced, because it has %s, which is not a file of an export; move "
                         "the file away, or name another folder",
                         folder, name)
               : AD_OK;
}

/* ---- temporary names, under which the export is written ---- */

static ad_status add_ending(const char *folder, const char *token, const char *ending, char **out) {
  size_t size = strlen(folder) + strlen(token) + strlen(ending) + 2;
  AD_TRY(ad_new(size, out));
  snprintf(*out, size, "%s.%s%s", folder, token, ending);
  return AD_OK;
}

static ad_status make_names(const char *folder, ad_export_place *place) {
  char token[AD_TOKEN_SIZE];
  ad_token_print(ad_token_bits(), token);
  AD_TRY(ad_copy_string(folder, &place->folder));
  for (size_t end = strlen(place->folder); end > 1 && place->folder[end - 1] == '/'; end--) place->folder[end - 1] = 0;
  AD_TRY(add_ending(place->folder, token, ".tmp", &place->written));
  return add_ending(place->folder, token, ".old.tmp", &place->earlier);
}

static void release_place(ad_export_place *place) {
  ad_release(place->folder);
  ad_release(place->written);
  ad_release(place->earlier);
  *place = (ad_export_place){0};
}

ad_status ad_export_begin(const char *folder, int overwrite, ad_export_place *out) {
  ad_export_place place = {0};
  ad_status status = make_names(folder, &place);
  if (!status) status = check_free(place.folder, overwrite);
  if (!status) status = ad_folder_make(place.written);
  place.overwrite = overwrite;
  if (status)
    release_place(&place);
  else
    *out = place;
  return status;
}

/* ---- giving the finished folder its name ---- */

static ad_status rename_folder(const char *from, const char *to) {
  return rename(from, to)
             ? ad_fail(AD_IO, "%s: the path cannot be renamed to %s (%s); check the permissions of the folder", from,
                       to, strerror(errno))
             : AD_OK;
}

static ad_status sync_parent(const char *folder) {
  char *parent;
  AD_TRY(ad_copy_string(folder, &parent));
  char *slash = strrchr(parent, '/');
  if (slash) *(slash == parent ? slash + 1 : slash) = 0;
  ad_status status = ad_folder_sync(slash ? parent : ".");
  ad_release(parent);
  return status;
}

/* Renames the folder to its final name, unless files that may not be replaced appeared there meanwhile. rename itself
 * replaces an empty folder. An earlier export is renamed first, and removed after the new one has its name. */
static ad_status take_name(const ad_export_place *place) {
  AD_TRY(ad_folder_sync(place->written));
  AD_TRY(check_free(place->folder, place->overwrite));
  if (!rename(place->written, place->folder)) return sync_parent(place->folder);
  AD_TRY(rename_folder(place->folder, place->earlier));
  ad_status status = rename_folder(place->written, place->folder);
  if (status) return rename(place->earlier, place->folder), status;
  AD_TRY(sync_parent(place->folder));
  return ad_folder_remove(place->earlier);
}

static void remove_written(const ad_export_place *place) {
  char message[AD_MESSAGE_MAX];
  snprintf(message, sizeof message, "%s", ad_last_error());
  if (ad_folder_remove(place->written)) ad_log(AD_LOG_WARNING, "%s", ad_last_error());
  (void)ad_fail(AD_IO, "%s", message);
}

ad_status ad_export_end(ad_export_place *place, ad_status written) {
  ad_status status = written ? written : take_name(place);
  if (status) remove_written(place);
  release_place(place);
  return status;
}
