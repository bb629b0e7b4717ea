/* The files of a dump of several modules, each of which has a mesh and sums of its own: by the name that reducers put
 * before "rank" in "encoder.rank00003.sum.safetensors". Files that are named otherwise say nothing of modules. */
#ifndef DIFF_MODULES_H
#define DIFF_MODULES_H
#include "addend/status.h"
#include "files/file.h"

typedef struct ad_dump_module {
  char *name;
  const char **files; /* its own, and those that are named otherwise: a reference of all */
  size_t count;
} ad_dump_module;

typedef struct ad_dump_modules {
  ad_file_list list; /* owns the paths */
  ad_dump_module *modules;
  size_t count; /* 0: the files are those of one module, or not there */
} ad_dump_modules;

/* Of the files, and those in the folders. */
ad_status ad_dump_modules_list(const char *const *paths, size_t count, ad_dump_modules *out) AD_CHECKED;
void ad_dump_modules_clear(ad_dump_modules *modules);
const ad_dump_module *ad_dump_modules_find(const ad_dump_modules *modules, const char *name); /* NULL: none */

#endif
