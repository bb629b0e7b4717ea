/* From numbers to causes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "check/proof.h"

static ad_mesh *mesh; /* 3 replicas of 2 shards, an axis of size 1 */
static const ad_axes REPLICATE = AD_AXES(AD_DP_REPLICATE), SHARD = AD_AXES(AD_DP_SHARD);

static int set_up(void **state) { return ad_mesh_create("dp_replicate=3 dp_shard=2 tp=1", &mesh); }
static int tear_down(void **state) { return ad_mesh_destroy(mesh), 0; }

static ad_cause diagnose(double ratio, double error, int proportional, int equal, ad_axes differs, int64_t odd) {
  ad_proof_param param = {
      .ratio = ratio, .max_rel_err = error, .bound = 1e-12, .update_equal = 1, .replicas_equal = equal};
  return ad_diagnose(mesh, REPLICATE | SHARD, &param, proportional, differs, odd);
}

static void a_sound_gradient_has_no_cause(void **state) {
  assert_int_equal(diagnose(1, 1e-15, 1, 1, 0, -1).kind, AD_CAUSE_NONE);
}

static void the_inverse_of_a_group_names_its_average(void **state) {
  ad_cause cause = diagnose(1.0 / 3, 0.66, 1, 1, 0, -1);
  assert_int_equal(cause.kind, AD_CAUSE_AVERAGED);
  assert_int_equal(cause.axes, REPLICATE);
  assert_string_equal(cause.text, "averaged over dp_replicate");
  assert_int_equal(diagnose(0.5, 0.5, 1, 1, 0, -1).axes, SHARD);
  assert_int_equal(diagnose(1.0 / 6, 0.8, 1, 1, 0, -1).axes, REPLICATE | SHARD);
}

static void the_size_of_a_group_names_its_double_sum(void **state) {
  ad_cause cause = diagnose(3, 2, 1, 1, 0, -1);
  assert_int_equal(cause.kind, AD_CAUSE_DOUBLED);
  assert_int_equal(cause.axes, REPLICATE);
}

/* Of experts: summed over their copies alone, while tokens come from all ranks of ep. */
static void the_size_of_a_group_that_is_not_summed_over_names_a_divisor_without_it(void **state) {
  ad_mesh *view;
  assert_int_equal(ad_mesh_create("efsdp=2 ep=4 etp=3", &view), AD_OK);
  ad_proof_param param = {.ratio = 4, .max_rel_err = 3, .bound = 1e-12, .update_equal = 1, .replicas_equal = 1};
  ad_cause cause = ad_diagnose(view, AD_AXES(AD_EFSDP), &param, 1, 0, -1);
  assert_int_equal(cause.kind, AD_CAUSE_DOUBLED);
  assert_int_equal(cause.axes, AD_AXES(AD_EP));
  assert_string_equal(cause.text, "divided by too few ranks: by none over ep");
  ad_mesh_destroy(view);
}

static void a_factor_of_no_group_stays_unknown(void **state) {
  assert_int_equal(diagnose(0.7, 0.3, 1, 1, 0, -1).kind, AD_CAUSE_UNKNOWN);
}

static void copies_that_differ_along_an_axis_were_not_reduced_over_it(void **state) {
  ad_cause cause = diagnose(0.9, 0.4, 0, 0, SHARD, -1);
  assert_int_equal(cause.kind, AD_CAUSE_PARTIAL);
  assert_int_equal(cause.axes, SHARD);
}

static void one_odd_copy_is_named(void **state) {
  ad_cause cause = diagnose(1, 0, 1, 0, REPLICATE, 4);
  assert_int_equal(cause.kind, AD_CAUSE_REPLICAS_DIFFER);
  assert_non_null(strstr(cause.text, "rank 4"));
}

static void equal_copies_that_are_wrong_lack_addends(void **state) {
  assert_int_equal(diagnose(0.8, 0.4, 0, 1, 0, -1).kind, AD_CAUSE_MISSING);
}

static void a_tiny_difference_is_rounding(void **state) {
  assert_int_equal(diagnose(1, 1e-9, 0, 1, 0, -1).kind, AD_CAUSE_ROUNDING);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sound_gradient_has_no_cause),
      cmocka_unit_test(the_inverse_of_a_group_names_its_average),
      cmocka_unit_test(the_size_of_a_group_names_its_double_sum),
      cmocka_unit_test(the_size_of_a_group_that_is_not_summed_over_names_a_divisor_without_it),
      cmocka_unit_test(a_factor_of_no_group_stays_unknown),
      cmocka_unit_test(copies_that_differ_along_an_axis_were_not_reduced_over_it),
      cmocka_unit_test(one_odd_copy_is_named),
      cmocka_unit_test(equal_copies_that_are_wrong_lack_addends),
      cmocka_unit_test(a_tiny_difference_is_rounding),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
