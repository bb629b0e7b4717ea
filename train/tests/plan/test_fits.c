/* Tests whether the memory that ranks and checks need fits the machine, whose limits are read from folders in place of
 * /proc and /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>
#include <jansson.h>
#include "base/error.h"
#include "plan/fits.h"
#include "says.h"

static char root[64];
static char warned[AD_MESSAGE_MAX];

static void put(const char *folders, const char *name, const char *text) {
  char command[256], path[256];
  snprintf(command, sizeof command, "mkdir -p '%s/%s'", root, folders);
  assert_int_equal(system(command), 0);
  snprintf(path, sizeof path, "%s/%s/%s", root, folders, name);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(text, file);
  assert_int_equal(fclose(file), 0);
}

static void put_machine(unsigned long available, unsigned long swap) { /* MiB */
  char text[128];
  snprintf(text, sizeof text, "MemAvailable: %lu kB\nSwapFree: %lu kB\n", available << 10, swap << 10);
  put("proc", "meminfo", text);
}

static void put_group(unsigned long limit, unsigned long used) { /* MiB */
  char text[64];
  put("proc/self", "cgroup", "0::/job/step\n");
  put("sys/fs/cgroup/job/step", "memory.max", "max\n");
  snprintf(text, sizeof text, "%lu\n", limit << 20);
  put("sys/fs/cgroup/job", "memory.max", text);
  snprintf(text, sizeof text, "%lu\n", used << 20);
  put("sys/fs/cgroup/job", "memory.current", text);
}

static void listen(void *context, ad_log_level level, const char *message) {
  snprintf(warned, sizeof warned, "%s", message);
}

static int make_root(void **state) {
  snprintf(root, sizeof root, "/tmp/addend-fits-XXXXXX");
  *warned = 0;
  ad_set_log(listen, NULL);
  return !mkdtemp(root);
}

static int remove_root(void **state) {
  char command[96];
  ad_set_log(NULL, NULL);
  snprintf(command, sizeof command, "rm -rf '%s'", root);
  return system(command);
}

static ad_status fits(size_t mebibytes) { return ad_memory_fits(root, "the ranks need", mebibytes << 20); }

static void what_fits_is_not_spoken_of(void **state) {
  put_machine(1000, 0);
  put_group(800, 100);
  assert_int_equal(fits(700), AD_OK);
  assert_string_equal(warned, "");
}

static void more_than_the_groups_limit_is_refused(void **state) {
  put_machine(1000, 0);
  put_group(500, 0);
  assert_int_equal(fits(501), AD_MEMORY);
  assert_says("501", "MiB");
  assert_says("500", "MiB");
  assert_says("/sys/fs/cgroup/job/memory.max");
  put_machine(1000, 1);  // swap makes up for the missing memory
  assert_int_equal(fits(501), AD_OK);
}

static void less_that_is_left_is_a_warning(void **state) {
  put_machine(300, 50);
  assert_int_equal(fits(350), AD_OK);
  assert_string_equal(warned, "");
  assert_int_equal(fits(351), AD_OK);
  assert_text_says(warned, "351", "MiB");
  assert_text_says(warned, "300", "MiB");
  *warned = 0;
  put_machine(1000, 0);
  put_group(500, 400);
  assert_int_equal(fits(101), AD_OK);
  assert_text_says(warned, "100", "MiB");
}

static ad_recipe *recipe_with(const char *set) {
  ad_recipe *recipe;
  assert_int_equal(ad_recipe_read(AD_TEST_SOURCE "/recipes/gpt-dp.yaml", &set, 1, &recipe), AD_OK);
  return recipe;
}

static void a_plan_needs_the_peaks_of_all_ranks(void **state) {
  size_t own, wide, larger_own;
  ad_recipe *recipe = recipe_with("model.d_model=512"), *larger = recipe_with("model.d_model=1024");
  assert_int_equal(ad_plan_needs(recipe, 0, &own), AD_OK);
  assert_int_equal(ad_plan_needs(recipe, AD_F64, &wide), AD_OK);
  assert_int_equal(ad_plan_needs(larger, 0, &larger_own), AD_OK);
  char *text;
  assert_int_equal(ad_plan_json(recipe, NULL, &text), AD_OK);
  json_t *document = json_loads(text, 0, NULL);
  json_t *node = json_array_get(json_object_get(document, "memory_per_node"), 0);
  assert_true((size_t)json_integer_value(json_object_get(node, "peak")) == own);
  json_decref(document);
  free(text);
  assert_true(wide > own && larger_own > own);
  ad_recipe_destroy(recipe);
  ad_recipe_destroy(larger);
}

#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)

int main(void) {
  const struct CMUnitTest tests[] = {
      IN_ROOT(what_fits_is_not_spoken_of),
      IN_ROOT(more_than_the_groups_limit_is_refused),
      IN_ROOT(less_that_is_left_is_a_warning),
      cmocka_unit_test(a_plan_needs_the_peaks_of_all_ranks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
