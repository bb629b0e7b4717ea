/* Reads whole files, lists the regular files below a folder, makes and removes folders. Callers interpret the bytes. */
#ifndef FILES_FILE_H
#define FILES_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

/* Reads a regular file: *out has its bytes and a final 0, which *size does not count. AD_IO names the path and the
 * system's reason, or both sizes if the file has more than `most` bytes. Release *out with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_file_read(const char *path, int64_t most, char **out, int64_t *size);

typedef struct ad_file_entry {
  char *path;
  int64_t size;
} ad_file_entry;
typedef struct ad_file_list {
  ad_file_entry *entries;
  size_t count, capacity;
  /* Called for each entry of a folder that is skipped; `what` is the kind of entry in words, such as "a symbolic link".
   * NULL allowed. */
  void (*passed)(const char *path, const char *what);
} ad_file_list;
/* Adds `path` to the list if it is a file (a symbolic link is followed). If it is a folder, adds the regular files
 * below it, in the byte order of their names; symbolic links in it are skipped, because the files that they lead to are
 * often listed anyway. AD_IO names a path that is missing or may not be read, or a folder without any file; the list
 * then has the files that were found before the error. */
AD_INTERNAL AD_CHECKED ad_status ad_file_list_add(ad_file_list *list, const char *path);
AD_INTERNAL void ad_file_list_clear(ad_file_list *list);

/* Returns 1 if `path` does not exist, or was last written before `other`; else 0. */
AD_INTERNAL int ad_file_is_older(const char *path, const char *other);

/* Returns 1 if a file of this name always lies in its folder: the name has no '/' and does not begin with '.'. Else
 * 0. */
AD_INTERNAL int ad_name_is_plain(const char *name);
/* *out: "FOLDER/NAME"; release it with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_path_in(const char *folder, const char *name, char **out);
/* Makes the folder and its parent folders; they may already exist. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_make(const char *path);
/* Removes the folder and the files in it, but no subfolders. The folder need not exist. If `path` is a file or a link,
 * removes only that. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_remove(const char *path);
/* Removes the files in the folder for whose names `is_known` returns 1, and the folder if it is then empty. If `path`
 * is a link, removes only the link. *left is 1 if other entries remain in the folder, else 0. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_remove_known(const char *path, int (*is_known)(const char *name), int *left);
/* Returns AD_INVALID if the last component of the path is a symbolic link, through which files of another folder would
 * be removed. The path need not exist. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_check_no_link(const char *path);
/* Waits until the folder's directory entries are on disk. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_sync(const char *path);

#endif
