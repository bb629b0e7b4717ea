/* Sorts the files of a dump by the module (part of the model) that each file's name gives. */
#include "read/modules.h"

#include <string.h>
#include "base/memory.h"
#include "read/dump.h"

/* Returns 1 if `text`, which follows "rank" in a file's name, has the form "00003.sum.safetensors" or
 * "00003.addend.m0.safetensors" of the names that addend's reducers give. */
static int ends_as_own(const char *text) {
  size_t digits = strspn(text, "0123456789");
  return digits && (!strncmp(text + digits, ".sum.", 5) || !strncmp(text + digits, ".addend.", 8));
}

/* Finds the module's name in a path: sets *begin to its start and returns its length, for example 7 for "encoder" in
 * "FOLDER/encoder.rank00003.sum.safetensors". Returns 0 if the file name has no module, -1 if it does not have the form
 * that reducers give. */
static int module_of(const char *path, const char **begin) {
  const char *base = strrchr(path, '/');
  *begin = base = base ? base + 1 : path;
  for (const char *at = base; (at = strstr(at, "rank")); at++)
    if ((at == base || at[-1] == '.') && ends_as_own(at + 4)) return at == base ? 0 : (int)(at - 1 - base);
  return -1;
}

const ad_dump_module *ad_dump_modules_find(const ad_dump_modules *modules, const char *name) {
  for (size_t i = 0; i < modules->count; i++)
    if (!strcmp(modules->modules[i].name, name)) return &modules->modules[i];
  return NULL;
}

/* Adds a module unless it is listed already. */
static ad_status add_module(ad_dump_modules *to, const char *begin, int length) {
  char *name;
  AD_TRY(ad_new((size_t)length + 1, &name));
  memcpy(name, begin, (size_t)length);
  ad_status status = ad_dump_modules_find(to, name) ? AD_OK : ad_grow(&to->modules, to->count, to->count + 1);
  if (status || ad_dump_modules_find(to, name)) {
    ad_release(name);
    return status;
  }
  to->modules[to->count++].name = name;
  return AD_OK;
}

/* Returns 1 if a file belongs to a module. Files whose names are not those that reducers give belong to every
 * module. */
static int is_of(const char *path, const ad_dump_module *module) {
  const char *begin;
  int length = module_of(path, &begin);
  return length < 0 || (strlen(module->name) == (size_t)length && !strncmp(module->name, begin, (size_t)length));
}

/* Lists the module's files. */
static ad_status list_module_files(const ad_file_list *list, ad_dump_module *module) {
  AD_TRY(ad_new(list->count, &module->files));
  for (size_t i = 0; i < list->count; i++)
    if (is_of(list->entries[i].path, module)) module->files[module->count++] = list->entries[i].path;
  return AD_OK;
}

static ad_status sort(ad_dump_modules *modules) {
  for (size_t i = 0; i < modules->list.count; i++) {
    const char *begin;
    int length = module_of(modules->list.entries[i].path, &begin);
    if (length >= 0) AD_TRY(add_module(modules, begin, length));
  }
  for (size_t i = 0; i < modules->count && modules->count > 1; i++)
    AD_TRY(list_module_files(&modules->list, &modules->modules[i]));
  return AD_OK;
}

/* Warns of those entries of folders that are skipped. */
static void report_passed(const char *const *paths, size_t count) {
  ad_file_list list = {.passed = ad_dump_report_passed};
  for (size_t i = 0; i < count; i++)
    if (ad_dump_list(&list, paths[i])) break;
  ad_file_list_clear(&list);
}

ad_status ad_dump_modules_list(const char *const *paths, size_t count, ad_dump_modules *out) {
  ad_dump_modules modules = {0};
  ad_status status = AD_OK;
  for (size_t i = 0; i < count && !status; i++) status = ad_dump_list(&modules.list, paths[i]);
  int is_whole = !status;
  /* a missing file or folder is reported when the files are opened */
  if (status == AD_IO || status == AD_INVALID) status = AD_OK;
  if (is_whole) status = sort(&modules);
  if (modules.count < 2) ad_dump_modules_clear(&modules);
  if (modules.count) report_passed(paths, count);
  *out = modules;
  return status;
}

void ad_dump_modules_clear(ad_dump_modules *modules) {
  for (size_t i = 0; i < modules->count; i++) {
    ad_release(modules->modules[i].name);
    ad_release(modules->modules[i].files);
  }
  ad_release(modules->modules);
  ad_file_list_clear(&modules->list);
  *modules = (ad_dump_modules){0};
}
