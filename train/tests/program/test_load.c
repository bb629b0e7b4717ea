/* Tests what ad_program_load takes from a shared object and what it refuses. The loader is replaced: each object is a
 * record of this file, and its path that of any file. */
#include <dlfcn.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "addend/addend.h"
#include "program/program.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

/* ---- the loader ---- */

static char handle;                           /* its address is the handle of the object */
static const ad_program_object *object_found; /* what the object has under the name `addend_program` */
static int opened, closed;
static char folder[32], path[48];

void *__real_dlopen(const char *path, int flags);
void *__wrap_dlopen(const char *path, int flags);
void *__real_dlsym(void *library, const char *symbol);
void *__wrap_dlsym(void *library, const char *symbol);
int __real_dlclose(void *library);
int __wrap_dlclose(void *library);

void *__wrap_dlopen(const char *name, int flags) {
  if (!name || strcmp(name, path) != 0) return __real_dlopen(name, flags);
  opened++;
  return &handle;
}

void *__wrap_dlsym(void *library, const char *symbol) {
  if (library != &handle) return __real_dlsym(library, symbol);
  return strcmp(symbol, "addend_program") ? NULL : (void *)(uintptr_t)object_found;
}

int __wrap_dlclose(void *library) {
  if (library != &handle) return __real_dlclose(library);
  closed++;
  return 0;
}

/* ---- objects ---- */

static ad_status make(const void *options, ad_program *to, void **own) { return AD_OK; }

static ad_status read_nothing(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return AD_OK;
}

static const char *const modules[] = {"model", NULL};
static const ad_program_kind first = {
    .size = sizeof first, .name = "first", .modules = modules, .create = make, .read = read_nothing};
static const ad_program_kind second = {
    .size = sizeof second, .name = "second", .modules = modules, .create = make, .read = read_nothing};
static const ad_program_kind other = {
    .size = sizeof other, .name = "first", .modules = modules, .create = make, .read = read_nothing};
static const ad_program_kind *const both[] = {&first, &second, NULL}, *const taken[] = {&other, NULL},
                                    *const none[] = {NULL};

static ad_program_object object_of(const ad_program_kind *const *kinds) {
  return (ad_program_object){sizeof(ad_program_object), AD_HEADER_VERSION, kinds, ad_program_register};
}

static int make_file(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-load-XXXXXX");
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/own.so", folder);
  return close(creat(path, 0600));
}

static int remove_file(void **state) { return unlink(path) || rmdir(folder); }

static void refuses(const ad_program_object *object, const char *const *facts) {
  object_found = object;
  opened = closed = 0;
  assert_int_equal(ad_program_load(path), AD_INVALID);
  assert_says_all(facts);
  assert_int_equal(opened, 1);
  assert_int_equal(closed, 1);
}

static ad_status register_elsewhere(const ad_program_kind *kind) { return AD_OK; }

static void an_object_that_cannot_be_used_is_refused_and_closed(void **state) {
  ad_program_object object = object_of(both);
  refuses(NULL, SAYS_FACTS(path));
  object.size--;
  refuses(&object, SAYS_FACTS(path));
  object = object_of(both);
  object.version = "0.0.1";
  refuses(&object, SAYS_FACTS(path, "0.0.1"));
  object = object_of(both);
  object.library = register_elsewhere;
  refuses(&object, SAYS_FACTS(path));
  object = object_of(NULL);
  refuses(&object, SAYS_FACTS(path));
  object = object_of(none);
  refuses(&object, SAYS_FACTS(path));
  assert_null(ad_program_kind_find("first"));
}

static void an_object_is_loaded_as_often_as_one_likes(void **state) {
  ad_program_object object = object_of(both);
  object_found = &object;
  opened = closed = 0;
  for (int time = 1; time <= 3; time++) {
    must(ad_program_load(path));
    assert_int_equal(opened, time);
    assert_ptr_equal(ad_program_kind_find("first"), &first);
    assert_ptr_equal(ad_program_kind_find("second"), &second);
  }
  assert_int_equal(closed, 0);
  object = object_of(taken);
  refuses(&object, SAYS_FACTS(path, "first"));
  assert_ptr_equal(ad_program_kind_find("first"), &first);
}

static void refuses_file(const char *name, const char *fact) {
  opened = 0;
  assert_int_equal(ad_program_load(name), AD_INVALID);
  assert_says(name, fact);
  assert_int_equal(opened, 0);
}

/* The loader would map parts that are missing from a short file, and the process would end when it touches them. */
static void a_file_that_is_no_whole_object_never_reaches_the_loader(void **state) {
  ad_program_object object = object_of(both);
  char head[64 + 56] = {0};
  FILE *self = fopen("/proc/self/exe", "r"), *file;
  object_found = &object;
  refuses_file("/tmp", NULL);
  refuses_file("/nowhere/at/all.so", NULL);
  assert_true(self && fread(head, sizeof head, 1, self) == 1); /* the headers alone, of a file of some MB */
  fclose(self);
  file = fopen(path, "w");
  assert_true(file && fwrite(head, sizeof head, 1, file) == 1);
  assert_int_equal(fclose(file), 0);
  refuses_file(path, "120");
  file = fopen(path, "w"); /* not an object at all: that is for the loader to say */
  assert_true(file && fputs("text", file) >= 0);
  assert_int_equal(fclose(file), 0);
  must(ad_program_load(path));
  assert_int_equal(opened, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_object_that_cannot_be_used_is_refused_and_closed),
      cmocka_unit_test(an_object_is_loaded_as_often_as_one_likes),
      cmocka_unit_test(a_file_that_is_no_whole_object_never_reaches_the_loader),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
