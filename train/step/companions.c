/* Copies files that belong to a run (its companions) into its folder, and distinguishes such a copy from another file
 * of the same name. */
#include "step/companions.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "architecture/folder.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/unfinished.h"
#include "files/file.h"
#include "files/json.h"
#include "program/program.h"

enum { COMPANION_BYTES_MAX = 1 << 30 };

/* A function that is called with the path of each companion of the run. */
typedef ad_status each_companion(void *context, const char *path);

static ad_status each_of_model(const ad_run *run, each_companion *function, void *context) {
  for (size_t i = 0; run->recipe->from && i < AD_PRETRAINED_FILES; i++) {
    char *path;
    AD_TRY(ad_path_in(run->recipe->from, ad_pretrained_files[i], &path));
    ad_status status = access(path, F_OK) ? AD_OK : function(context, path);
    ad_release(path);
    if (status) return status;
  }
  return AD_OK;
}

/* Calls the function for files of the model that the run starts from, and then for files of its data. */
static ad_status each(const ad_run *run, each_companion *function, void *context) {
  const ad_program_kind *kind = ad_program_kind_of(run->program);
  const char *companion;
  AD_TRY(each_of_model(run, function, context));
  for (size_t i = 0; kind->data.companion &&
                     (companion = AD_GUEST(kind, "companion", kind->data.companion(ad_program_own(run->program), i)));
       i++)
    AD_TRY(function(context, companion));
  return AD_OK;
}

static const char *name_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

/* What the folder has under a companion's name: nothing, the companion itself, a copy of it, or another file. */
typedef enum standing { NOTHING, ITSELF, A_COPY, ANOTHER } standing;

static int are_identical(const char *path, const char *other) {
  char *a = NULL, *b = NULL;
  int64_t size = -1, other_size = -2;
  int failed = ad_file_read(path, COMPANION_BYTES_MAX, &a, &size) != AD_OK ||
               ad_file_read(other, COMPANION_BYTES_MAX, &b, &other_size) != AD_OK;
  int identical = !failed && size == other_size && !memcmp(a, b, (size_t)size);
  ad_release(a);
  ad_release(b);
  return identical;
}

static standing look_at(const char *companion, const char *path) {
  struct stat own, there;
  if (stat(path, &there)) return NOTHING;
  if (!stat(companion, &own) && own.st_dev == there.st_dev && own.st_ino == there.st_ino) return ITSELF;
  return are_identical(companion, path) ? A_COPY : ANOTHER;
}

typedef struct contents {
  char *bytes;
  int64_t size;
} contents;

static ad_status write_contents(FILE *file, void *context) {
  const contents *of = context;
  fwrite(of->bytes, 1, (size_t)of->size, file);
  return AD_OK;
}

static ad_status copy(const char *companion, const char *path) {
  contents of;
  AD_TRY(ad_file_read(companion, COMPANION_BYTES_MAX, &of.bytes, &of.size));
  ad_status status = ad_unfinished_write(path, write_contents, &of, NULL);
  ad_release(of.bytes);
  return status;
}

static ad_status copy_into(void *context, const char *companion) {
  const char *folder = context, *name = name_of(companion);
  char *path;
  AD_TRY(ad_unfinished_remove(folder, &name, 1));
  AD_TRY(ad_path_in(folder, name, &path));
  standing found = look_at(companion, path);
  if (found == ANOTHER)
    ad_log(AD_LOG_WARNING,
           "%s was there before this run and was kept, although it differs from %s, which this run uses; remove the "
           "first file if it is not needed",
           path, companion);
  ad_status status = found == NOTHING ? copy(companion, path) : AD_OK;
  ad_release(path);
  return status;
}

ad_status ad_companions_copy(const ad_run *run, const char *folder) {
  return each(run, copy_into, (void *)(uintptr_t)folder);
}

typedef struct listing {
  const char *folder;
  json_t *names;
} listing;

static ad_status list_copy(void *context, const char *companion) {
  const listing *list = context;
  char *path;
  AD_TRY(ad_path_in(list->folder, name_of(companion), &path));
  if (look_at(companion, path) == A_COPY) json_array_append_new(list->names, ad_json_text(name_of(companion)));
  ad_release(path);
  return AD_OK;
}

json_t *ad_companions_list(const ad_run *run, const char *folder) {
  listing list = {folder, json_array()};
  if (each(run, list_copy, &list)) ad_log(AD_LOG_WARNING, "%s", ad_last_error());
  return list.names;
}
