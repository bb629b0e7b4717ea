/* Reads whole files, lists the regular files below a folder, makes and removes folders. Callers interpret the bytes. */
#ifndef FILES_FILE_H
#define FILES_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

/* Reads a regular file: *out has its bytes, followed by a 0 that *size does not count. AD_IO names the path and the
 * system's reason, or both sizes if the file has more than `most` bytes. Release *out with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_file_read(const char *path, int64_t most, char **out, int64_t *size);

typedef struct ad_file_entry {
  char *path;
  int64_t size;
} ad_file_entry;
typedef struct ad_file_list {
  ad_file_entry *entries;
  size_t count, capacity;
  /* Called for each entry of a folder that is skipped, with a word for its kind: a link, a pipe. NULL allowed. */
  void (*passed)(const char *path, const char *what);
} ad_file_list;
/* Adds `path` to the list if it is a file (a symbolic link is followed). If it is a folder, adds the regular files
 * below it, in the byte order of their names; symbolic links are skipped there, because their targets would often be
 * listed twice. AD_IO names a path that is missing or may not be read, or a folder without any file; the list then
 * holds what was found before. */
AD_INTERNAL AD_CHECKED ad_status ad_file_list_add(ad_file_list *list, const char *path);
AD_INTERNAL void ad_file_list_clear(ad_file_list *list);

/* Returns 1 if `path` does not exist, or was last written before `other`. */
AD_INTERNAL int ad_file_is_older(const char *path, const char *other);

/* Returns 1 for a name that stays inside its folder: it has no '/' and does not begin with '.'. */
AD_INTERNAL int ad_name_is_plain(const char *name);
/* "FOLDER/NAME"; release with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_path_in(const char *folder, const char *name, char **out);
/* Makes the folder and its parent folders; they may already exist. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_make(const char *path);
/* Removes the folder and the files in it; subfolders are not entered. The folder need not exist. If a file or a link is
 * in its place, only that is removed. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_remove(const char *path);
/* Removes the files in the folder whose names `is_known` accepts, and the folder if it is then empty. If the path is a
 * link, removes only the link. *left is 1 if other entries stay in the folder. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_remove_known(const char *path, int (*is_known)(const char *name), int *left);
/* Returns AD_INVALID if the last part of the path is a symbolic link: removing through the link would remove files of
 * another folder. The path need not exist. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_check_no_link(const char *path);
/* Waits until the folder's list of names is on disk. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_sync(const char *path);

#endif
