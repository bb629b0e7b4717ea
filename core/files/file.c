/* Reads whole files, lists the regular files below a folder, makes and removes folders. Nothing here interprets the
 * bytes. */
#include "files/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"

static ad_status cannot_read(const char *path, int reason) {
  return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path, strerror(reason));
}

/* Reads `size` bytes. AD_IO if the file ends before. */
static ad_status read_all(int file, const char *path, char *data, int64_t size) {
  int64_t done = 0;
  while (done < size) {
    ssize_t n = read(file, data + done, (size_t)(size - done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_read(path, errno);
    if (n == 0)
      return ad_fail(AD_IO,
                     "%s: the file ended after %lld of %lld bytes, so another program changed the file during reading; "
                     "read the file again when it is complete",
                     path, (long long)done, (long long)size);
    done += n;
  }
  return AD_OK;
}

/* *out: the size of a regular file; AD_IO if it has more than `most` bytes. */
static ad_status size_of(int file, const char *path, int64_t most, int64_t *out) {
  struct stat status;
  if (fstat(file, &status)) return cannot_read(path, errno);
  if (S_ISDIR(status.st_mode)) return cannot_read(path, EISDIR);
  if (!S_ISREG(status.st_mode)) return ad_fail(AD_IO, "%s: the path is not a regular file; name a regular file", path);
  if (status.st_size > most)
    return ad_fail(
        AD_IO, "%s: the file has %lld bytes, but addend reads at most %lld bytes of such a file; name a smaller file",
        path, (long long)status.st_size, (long long)most);
  *out = status.st_size;
  return AD_OK;
}

static ad_status read_open_file(int file, const char *path, int64_t most, char **out, int64_t *size) {
  int64_t bytes = 0;
  char *data;
  AD_TRY(size_of(file, path, most, &bytes));
  AD_TRY(ad_new((size_t)bytes + 1, &data));
  ad_status status = read_all(file, path, data, bytes);
  if (status) {
    ad_release(data);
    return status;
  }
  *out = data;
  *size = bytes;
  return AD_OK;
}

ad_status ad_file_read(const char *path, int64_t most, char **out, int64_t *size) {
  // O_NONBLOCK, so that a pipe is refused instead of waited for
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return cannot_read(path, errno);
  ad_status status = read_open_file(file, path, most, out, size);
  close(file);
  return status;
}

static ad_status append(ad_file_list *list, const char *path, int64_t size) {
  if (list->count == list->capacity) {
    size_t capacity = list->capacity ? 2 * list->capacity : 16;
    AD_TRY(ad_grow(&list->entries, list->capacity, capacity));
    list->capacity = capacity;
  }
  AD_TRY(ad_copy_string(path, &list->entries[list->count].path));
  list->entries[list->count++].size = size;
  return AD_OK;
}

static ad_status add_below(ad_file_list *list, const char *folder);

static ad_status add_file(ad_file_list *list, const char *path, int64_t size) {
  if (access(path, R_OK)) return cannot_read(path, errno);
  return append(list, path, size);
}

/* Adds one entry of a folder: the file, or if it is a folder all files below it. Links, pipes and the like are
 * skipped. */
static ad_status add_inner(ad_file_list *list, const char *path) {
  struct stat status;
  if (lstat(path, &status)) return cannot_read(path, errno);
  if (S_ISDIR(status.st_mode)) return add_below(list, path);
  if (S_ISREG(status.st_mode)) return add_file(list, path, status.st_size);
  if (list->passed) list->passed(path, S_ISLNK(status.st_mode) ? "a symbolic link" : "no regular file");
  return AD_OK;
}

static ad_status add_named(ad_file_list *list, const char *folder, const char *name) {
  if (!strcmp(name, ".") || !strcmp(name, "..")) return AD_OK;
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path;
  AD_TRY(ad_new(size, &path));
  snprintf(path, size, "%s%s%s", folder, folder[strlen(folder) - 1] == '/' ? "" : "/", name);
  ad_status status = add_inner(list, path);
  ad_release(path);
  return status;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

static ad_status add_below(ad_file_list *list, const char *folder) {
  struct dirent **names;
  int count = scandir(folder, &names, NULL, by_bytes);
  if (count < 0) return cannot_read(folder, errno);
  ad_status status = AD_OK;
  for (int i = 0; i < count; i++) {
    if (!status) status = add_named(list, folder, names[i]->d_name);
    free(names[i]);
  }
  free(names);
  return status;
}

ad_status ad_file_list_add(ad_file_list *list, const char *path) {
  struct stat status;
  size_t before = list->count;
  if (stat(path, &status)) return cannot_read(path, errno);
  if (S_ISREG(status.st_mode)) return add_file(list, path, status.st_size);
  if (!S_ISDIR(status.st_mode))
    return ad_fail(AD_IO, "%s: the path is neither a file nor a folder; name a file or a folder", path);
  AD_TRY(add_below(list, path));
  if (list->count == before)
    return ad_fail(AD_IO, "%s: the folder contains no regular file; name a folder that contains the files", path);
  return AD_OK;
}

void ad_file_list_clear(ad_file_list *list) {
  for (size_t i = 0; i < list->count; i++) ad_release(list->entries[i].path);
  ad_release(list->entries);
  *list = (ad_file_list){0};
}

int ad_file_is_older(const char *path, const char *other) {
  struct stat own, others;
  if (stat(path, &own)) return 1;
  if (stat(other, &others)) return 0;
  if (own.st_mtim.tv_sec != others.st_mtim.tv_sec) return own.st_mtim.tv_sec < others.st_mtim.tv_sec;
  return own.st_mtim.tv_nsec < others.st_mtim.tv_nsec;
}

/* ---- making and removing folders ---- */

int ad_name_is_plain(const char *name) { return *name && *name != '.' && !strchr(name, '/'); }

ad_status ad_path_in(const char *folder, const char *name, char **out) {
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path;
  AD_TRY(ad_new(size, &path));
  snprintf(path, size, "%s/%s", folder, name);
  *out = path;
  return AD_OK;
}

static ad_status make_one(const char *path) {
  struct stat found;
  if (!mkdir(path, 0777)) return AD_OK;
  int reason = errno;
  if (reason == EEXIST && !stat(path, &found) && S_ISDIR(found.st_mode)) return AD_OK;
  return ad_fail(AD_IO, "%s: the folder cannot be made (%s); check the path and its permissions", path,
                 strerror(reason));
}

ad_status ad_folder_make(const char *folder) {
  char *path;
  AD_TRY(ad_copy_string(folder, &path));
  ad_status status = AD_OK;
  for (char *slash = strchr(path + 1, '/'); slash && !status; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    status = make_one(path);
    *slash = '/';
  }
  if (!status) status = make_one(path);
  ad_release(path);
  return status;
}

static DIR *open_folder(const char *path) {
  int file = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  DIR *folder = file < 0 ? NULL : fdopendir(file);
  if (!folder && file >= 0) close(file);
  return folder;
}

/* Called after `path` could not be opened as a folder: removes `path` if it is a file or a link. */
static ad_status remove_other(const char *path) {
  int reason = errno;
  if (reason == ENOENT || ((reason == ELOOP || reason == ENOTDIR) && !unlink(path))) return AD_OK;
  return cannot_read(path, reason);
}

static void remove_files(DIR *folder, int (*is_known)(const char *name)) {
  for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (is_known(entry->d_name)) unlinkat(dirfd(folder), entry->d_name, 0);
  }
}

static ad_status cannot_remove(const char *path, int reason) {
  return ad_fail(AD_IO, "%s: the folder cannot be removed (%s); check its permissions", path, strerror(reason));
}

ad_status ad_folder_remove_known(const char *path, int (*is_known)(const char *name), int *left) {
  *left = 0;
  DIR *folder = open_folder(path);
  if (!folder) return remove_other(path);
  remove_files(folder, is_known);
  closedir(folder);
  if (!rmdir(path) || errno == ENOENT) return AD_OK;
  *left = errno == ENOTEMPTY || errno == EEXIST;
  return *left ? AD_OK : cannot_remove(path, errno);
}

static int is_any(const char *name) { return 1; }

ad_status ad_folder_remove(const char *path) {
  int left;
  AD_TRY(ad_folder_remove_known(path, is_any, &left));
  return left ? cannot_remove(path, ENOTEMPTY) : AD_OK;
}

/* Removes slashes at the end of the path: with them, readlink would follow a link instead of reading it. */
static void cut_slashes(char *path) {
  for (size_t end = strlen(path); end > 1 && path[end - 1] == '/'; end--) path[end - 1] = 0;
}

ad_status ad_folder_check_no_link(const char *path) {
  char *name, target[256];
  AD_TRY(ad_copy_string(path, &name));
  cut_slashes(name);
  ssize_t length = readlink(name, target, sizeof target);
  ad_release(name);
  if (length < 0) return AD_OK;  // the path is no link, or does not exist
  return ad_fail(
      AD_INVALID,
      "%s: the path is a symbolic link to %.*s, and addend removes nothing through a link; name the folder that the "
      "link leads to, or remove the link",
      path, (int)length, target);
}

ad_status ad_folder_sync(const char *path) {
  int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  int failed = folder < 0 || fsync(folder), reason = errno;
  if (folder >= 0) close(folder);
  // Some file systems cannot sync a folder; on these, syncing the files themselves must be enough.
  if (failed && reason != EINVAL && reason != ENOTSUP)
    return ad_fail(AD_IO, "%s: the folder cannot be synchronized to disk (%s); check the disk", path, strerror(reason));
  return AD_OK;
}
