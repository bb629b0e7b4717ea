/* Tests which module a dump's file is of, by its name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "read/modules.h"

enum { FILES = 9 };
/* A file belongs to a module where "rank" begins the name's last part, and to every module where it does not. */
static const struct {
  const char *name, *module; /* module: NULL, or the one that has the file */
} files[FILES] = {
    {"encoder.rank00003.sum.safetensors", "encoder"},
    {"encoder.rank00000.addend.m0.safetensors", "encoder"},
    {"de.coder.rank00003.sum.safetensors", "de.coder"},
    {"frank.rank1.sum.safetensors", "frank"},
    {"frank00003.sum.safetensors", NULL},
    {"de.crank00003.addend.m0.safetensors", NULL},
    {"encoder.rank.sum.safetensors", NULL},
    {"encoder.rank3.total.safetensors", NULL},
    {"reference.safetensors", NULL},
};

static int has(const ad_dump_module *module, const char *name) {
  for (size_t i = 0; i < module->count; i++)
    if (!strcmp(strrchr(module->files[i], '/') + 1, name)) return 1;
  return 0;
}

static void a_file_is_of_the_module_that_its_name_begins_with(void **state) {
  static const char *const names[] = {"encoder", "de.coder", "frank"};
  char folder[] = "/tmp/addend_modules_XXXXXX", path[FILES][128];
  const char *paths[] = {mkdtemp(folder)};
  ad_dump_modules found;
  assert_non_null(paths[0]);
  for (size_t i = 0; i < FILES; i++) {
    snprintf(path[i], sizeof path[i], "%s/%s", folder, files[i].name);
    FILE *file = fopen(path[i], "w");
    assert_true(file && !fclose(file));
  }
  assert_int_equal(ad_dump_modules_list(paths, 1, &found), AD_OK);
  assert_int_equal(found.count, 3);
  for (size_t m = 0; m < 3; m++) {
    const ad_dump_module *module = ad_dump_modules_find(&found, names[m]);
    assert_non_null(module);
    for (size_t i = 0; i < FILES; i++)
      assert_int_equal(has(module, files[i].name), !files[i].module || !strcmp(files[i].module, names[m]));
  }
  assert_null(ad_dump_modules_find(&found, "f"));
  ad_dump_modules_clear(&found);
  for (size_t i = 0; i < FILES; i++) unlink(path[i]);
  rmdir(folder);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_file_is_of_the_module_that_its_name_begins_with)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
