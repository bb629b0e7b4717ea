/* Loads programs from shared objects. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "addend/program.h"
#include "base/error.h"
#include "program/program.h"

enum { PATH_SIZE = 4096 };

static const char SYMBOL[] = "addend_program";

static ad_status check_version(const char *path, const ad_program_object *object) {
  const char *version = object->size == sizeof *object ? object->version : "another version";
  if (object->size == sizeof *object && !strcmp(version, ad_version())) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s was built with the headers of addend %s, but this is addend %s; build the file again with the "
                 "headers of this version",
                 path, version, ad_version());
}

/* Refuses an object that contains a copy of this library: its programs would register with that copy, and this process
 * would not see them. */
static ad_status check_library(const char *path, const ad_program_object *object) {
  if (object->library == ad_program_register) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s was linked with its own copy of addend's library; link the file without that library (`cc -shared "
                 "-fPIC`), so that its programs use the library of the process that loads them",
                 path);
}

static ad_status take_programs(const char *path, void *library) {
  const ad_program_object *object = dlsym(library, SYMBOL);
  if (!object)
    return ad_fail(AD_INVALID,
                   "%s has no programs, since none of its source files contains AD_PROGRAM_OBJECT(kinds); add this "
                   "line to one of them",
                   path);
  AD_TRY(check_version(path, object));
  AD_TRY(check_library(path, object));
  if (!object->kinds || !*object->kinds)
    return ad_fail(AD_INVALID,
                   "%s has no programs, since the list in AD_PROGRAM_OBJECT is empty; list at least one program", path);
  for (const ad_program_kind *const *kind = object->kinds; *kind; kind++) {
    if (ad_program_kind_find((*kind)->name) == *kind) continue;  // the kind was loaded before
    ad_status status = ad_program_register(*kind);
    if (status) return ad_fail_in(status, "%s", path);
  }
  return AD_OK;
}

/* Returns how many bytes of the file the loader maps, or 0 if the file is no shared object, which dlopen reports. */
static uint64_t end_of_object(FILE *file) {
  ElfW(Ehdr) head;
  uint64_t end = 0;
  if (fread(&head, sizeof head, 1, file) != 1 || memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  if (head.e_phentsize != sizeof(ElfW(Phdr)) || fseek(file, (long)head.e_phoff, SEEK_SET)) return 0;
  for (int i = 0; i < head.e_phnum; i++) {
    ElfW(Phdr) part;
    if (fread(&part, sizeof part, 1, file) != 1) return UINT64_MAX;
    if (part.p_type == PT_LOAD && part.p_offset + part.p_filesz > end) end = part.p_offset + part.p_filesz;
  }
  return end;
}

/* Refuses a file that is shorter than its headers state. The loader would map the missing part, and reading that memory
 * would end the process. */
static ad_status check_whole(const char *path, uint64_t bytes) {
  FILE *file = fopen(path, "re");
  if (!file) return ad_fail(AD_INVALID, "`%s` cannot be read (%s); name a shared object (.so)", path, strerror(errno));
  uint64_t end = end_of_object(file);
  fclose(file);
  if (end <= bytes) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "`%s` is cut short, since it has only %llu bytes, fewer than its headers state; build or copy the file again",
      path, (unsigned long long)bytes);
}

ad_status ad_program_load(const char *path) {
  AD_NEED(path);
  char here[PATH_SIZE]; /* the path with a slash, because without one dlopen searches only the library path */
  struct stat file;
  if (access(path, R_OK) || stat(path, &file))
    return ad_fail(AD_INVALID, "`%s` cannot be read (%s); name a shared object (.so)", path, strerror(errno));
  if (!S_ISREG(file.st_mode))
    return ad_fail(AD_INVALID, "`%s` is not a regular file, so it cannot be a program; name a shared object (.so)",
                   path);
  AD_TRY(check_whole(path, (uint64_t)file.st_size));
  snprintf(here, sizeof here, "%s%s", strchr(path, '/') ? "" : "./", path);
  ad_guest_begin("the loading of `%s`", path);
  void *library = dlopen(here, RTLD_NOW | RTLD_LOCAL);
  ad_guest_end();
  if (!library)
    return ad_fail(AD_INVALID, "%s cannot be loaded as a program (%s); build the file again as a shared object", path,
                   dlerror());
  ad_status status = take_programs(path, library);
  if (status) dlclose(library);
  return status;
}
