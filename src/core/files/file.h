/* Reading files whole, finding the regular files below a folder, making and removing folders. What the bytes mean is
 * decided elsewhere. */
#ifndef FILES_FILE_H
#define FILES_FILE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

/* The bytes of a regular file, followed by a 0 that *size does not count. AD_IO names the path and the system's reason,
 * or both sizes if there are more than `most` bytes. Release *out with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_file_read(const char *path, int64_t most, char **out, int64_t *size);

typedef struct ad_file_entry {
  char *path;
  int64_t size;
} ad_file_entry;
typedef struct ad_file_list {
  ad_file_entry *entries;
  size_t count, capacity;
  /* NULL, or told of what is passed over in a folder, with what it is: a link, a pipe. */
  void (*passed)(const char *path, const char *what);
} ad_file_list;
/* Adds `path` if it is a file (a symbolic link is followed), or the regular files below it if it is a folder: in the
 * byte order of their names, without symbolic links, whose targets would often be listed twice. AD_IO names the path
 * that is missing or may not be read, or a folder without any file; the list then holds what was found before it. */
AD_INTERNAL AD_CHECKED ad_status ad_file_list_add(ad_file_list *list, const char *path);
AD_INTERNAL void ad_file_list_clear(ad_file_list *list);

/* 1 if `path` is not there, or was last written before `other` was. */
AD_INTERNAL int ad_file_is_older(const char *path, const char *other);

/* 1 for the name of a file in a folder, which cannot lead out of it: without '/', and no '.' first. */
AD_INTERNAL int ad_name_is_plain(const char *name);
/* "FOLDER/NAME"; release with ad_release. */
AD_INTERNAL AD_CHECKED ad_status ad_path_in(const char *folder, const char *name, char **out);
/* Makes the folder and those above it; one that is there already will do. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_make(const char *path);
/* Removes the folder and the files in it; folders inside it are not entered. One that is not there will do; of a file
 * or a link in its place that alone is removed. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_remove(const char *path);
/* Removes the files in the folder whose names `is_known`, and the folder if nothing else is in it; a link that stands
 * there is removed itself. *left: 1 if something else is, which stays. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_remove_known(const char *path, int (*is_known)(const char *name), int *left);
/* AD_INVALID where the last part of the path is a symbolic link: what is removed in it would be another folder's. A
 * path with nothing there will do. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_check_no_link(const char *path);
/* Waits until the names in the folder are on disk. */
AD_INTERNAL AD_CHECKED ad_status ad_folder_sync(const char *path);

#endif
