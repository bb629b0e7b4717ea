/* Splits a dump of several modules, each with its own mesh and sums, by the module's name, which is before "rank" in
 * the names that reducers give their files: "encoder" in "encoder.rank00003.sum.safetensors". Files with other names
 * belong to every module. */
#ifndef DIFF_MODULES_H
#define DIFF_MODULES_H
#include "addend/status.h"
#include "files/file.h"

typedef struct ad_dump_module {
  char *name;
  const char **files; /* the module's files, and files whose names give no module (such as a reference) */
  size_t count;
} ad_dump_module;

/* The modules of a dump. */
typedef struct ad_dump_modules {
  ad_file_list list; /* owns the paths */
  ad_dump_module *modules;
  size_t count; /* 0: the files are those of a single module, or cannot be listed */
} ad_dump_modules;

/* Lists the modules of these files, and of the files in these folders. */
ad_status ad_dump_modules_list(const char *const *paths, size_t count, ad_dump_modules *out) AD_CHECKED;
void ad_dump_modules_clear(ad_dump_modules *modules);
const ad_dump_module *ad_dump_modules_find(const ad_dump_modules *modules, const char *name); /* NULL: none */

#endif
