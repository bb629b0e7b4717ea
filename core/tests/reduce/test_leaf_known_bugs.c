/* Tests the known bug of leaves that shows only where a gradient has elements that are -0, which few runs have: what it
 * does to a leaf. Those that every run shows are tested with the check for bits. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "reduce/known_bugs.h"
#include "reduce/reducer.h"

enum { NUMEL = 4 };

static const ad_known_bug *bug_called(const char *name) {
  size_t count;
  const ad_known_bug *bugs = ad_reduce_leaf_bugs(&count);
  for (size_t i = 0; i < count; i++)
    if (!strcmp(bugs[i].name, name)) return &bugs[i];
  fail_msg("no bug is called %s", name);
  return NULL;
}

static void a_leaf_added_to_zeros_has_no_negative_zero(void **state) {
  (void)state;
  float values[2 * NUMEL] = {-0.0f, -0.0f};
  float *leaf = values + NUMEL;
  const float given[NUMEL] = {-0.0f, 1.5f, -2.0f, 0.0f};
  ad_bucket bucket = {.stack = ad_stack_for(0, 4, 4, AD_F32, NUMEL)};
  ad_bucket_passing passing = {.bucket = &bucket};
  ad_known_bug_scene scene = {0};
  memcpy(leaf, given, sizeof given);
  bucket.sent.data = leaf;
  bug_called("leaf-added-to-zeros")->at[0].function(&scene, &passing);
  assert_true(scene.fired && leaf[0] == 0 && !signbit(leaf[0]));
  assert_memory_equal(leaf + 1, given + 1, sizeof given - sizeof *given);
  assert_true(signbit(values[0])); /* the sum before it is as it was */
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_leaf_added_to_zeros_has_no_negative_zero)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
