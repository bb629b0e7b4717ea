/* Tests how a check gets from wrong numbers to likely causes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "check/no_axis.h"
#include "check/result.h"
#include "says.h"

static ad_mesh *mesh; /* 3 replicas of 2 shards, and an axis of size 1 */
static const ad_axes REPLICATE = AD_AXES(AD_DP_REPLICATE), SHARD = AD_AXES(AD_DP_SHARD);

static int set_up(void **state) { return ad_mesh_create("dp_replicate=3 dp_shard=2 tp=1", &mesh); }
static int tear_down(void **state) { return ad_mesh_destroy(mesh), 0; }

static ad_causes causes;

static void diagnose_all(double ratio, double error, int proportional, int equal, ad_axes differs, int64_t odd) {
  ad_check_param param = {
      .ratio = ratio, .max_rel_err = error, .bound = 1e-12, .update_equal = 1, .replicas_equal = equal};
  ad_diagnose(mesh, REPLICATE | SHARD, &param, proportional, differs, odd, &causes);
}

/* The one cause, or one with an empty text if there is none. */
static ad_cause diagnose(double ratio, double error, int proportional, int equal, ad_axes differs, int64_t odd) {
  diagnose_all(ratio, error, proportional, equal, differs, odd);
  assert_true(causes.count <= 1);
  return causes.count ? causes.list[0] : (ad_cause){0};
}

/* The causes of a gradient that is `ratio` times right and is summed over `reduced`, as text: "kind
 * axes; kind axes". */
static const char *factors(const char *axes, ad_axes reduced, double ratio) {
  static char reported[512];
  ad_mesh *other;
  assert_int_equal(ad_mesh_create(axes, &other), AD_OK);
  ad_check_param param = {
      .ratio = ratio, .max_rel_err = fabs(ratio - 1), .bound = 1e-12, .update_equal = 1, .replicas_equal = 1};
  ad_diagnose(other, reduced, &param, 1, 0, -1, &causes);
  *reported = 0;
  for (int i = 0; i < causes.count; i++) {
    char names[80];
    assert_true(causes.list[i].factor == ratio);
    snprintf(reported + strlen(reported), sizeof reported - strlen(reported), "%s%s %s", i ? "; " : "",
             ad_cause_name(causes.list[i].kind), ad_axes_print(causes.list[i].axes, names, sizeof names));
  }
  ad_mesh_destroy(other);
  return reported;
}

static void a_sound_gradient_has_no_cause(void **state) {
  diagnose(1, 1e-15, 1, 1, 0, -1);
  assert_int_equal(causes.count, 0);
}

static void the_inverse_of_a_group_names_its_average(void **state) {
  ad_cause cause = diagnose(1.0 / 3, 0.66, 1, 1, 0, -1);
  assert_int_equal(cause.kind, AD_CAUSE_AVERAGED);
  assert_int_equal(cause.axes, REPLICATE);
  assert_text_says(cause.text, "dp_replicate");
  assert_int_equal(diagnose(0.5, 0.5, 1, 1, 0, -1).axes, SHARD);
  assert_int_equal(diagnose(1.0 / 6, 0.8, 1, 1, 0, -1).axes, REPLICATE | SHARD);
}

static void the_size_of_a_group_names_its_double_sum(void **state) {
  ad_cause cause = diagnose(3, 2, 1, 1, 0, -1);
  assert_int_equal(cause.kind, AD_CAUSE_DOUBLED);
  assert_int_equal(cause.axes, REPLICATE);
}

/* An expert's gradient is summed over efsdp (its copies) alone, while its tokens come from all ranks of ep. */
static void the_size_of_a_group_that_is_not_summed_over_names_a_divisor_without_it(void **state) {
  ad_mesh *view;
  assert_int_equal(ad_mesh_create("efsdp=2 ep=4 etp=3", &view), AD_OK);
  ad_check_param param = {.ratio = 4, .max_rel_err = 3, .bound = 1e-12, .update_equal = 1, .replicas_equal = 1};
  ad_diagnose(view, AD_AXES(AD_EFSDP), &param, 1, 0, -1, &causes);
  assert_int_equal(causes.count, 1);
  ad_cause cause = causes.list[0];
  assert_int_equal(cause.kind, AD_CAUSE_DOUBLED);
  assert_int_equal(cause.axes, AD_AXES(AD_EP));
  assert_text_says(cause.text, "ep");
  ad_mesh_destroy(view);
}

/* The causes of a factor name every set of axes with so many ranks, in whatever order the mesh has its axes. */
static void a_factor_that_several_groups_have_names_all_of_them(void **state) {
  ad_axes two = AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD), tp = AD_AXES(AD_TP);
  assert_string_equal(factors("dp_replicate=2 dp_shard=2", two, 0.5), "averaged dp_replicate; averaged dp_shard");
  assert_string_equal(factors("dp_replicate=2 dp_shard=2", two, 2), "doubled dp_replicate; doubled dp_shard");
  assert_string_equal(factors("dp_replicate=2 dp_shard=2", two, 0.25), "averaged dp_replicate,dp_shard");
  assert_string_equal(factors("dp_replicate=2 dp_shard=2 tp=4", two, 0.25),
                      "averaged tp; averaged dp_replicate,dp_shard");
  assert_string_equal(factors("pp=4 dp_replicate=2 dp_shard=2", two, 4), "doubled pp; doubled dp_replicate,dp_shard");
  assert_string_equal(factors("dp_replicate=2 tp=2", tp, 2), "doubled tp; doubled dp_replicate");
  assert_says_in("doubled over axes of its sum", causes.list[0].text, SAYS_FACTS("tp"));
  assert_says_in("doubled over other axes", causes.list[1].text, SAYS_FACTS("dp_replicate"));
  assert_string_equal(factors("dp_replicate=2 tp=2", tp, 0.5), "averaged tp; averaged dp_replicate");
  assert_says_in("averaged over other axes", causes.list[1].text, SAYS_FACTS("dp_replicate"));
  assert_string_equal(factors("pp=2 dp_replicate=2 dp_shard=2 cp=2 tp=2 block=2", AD_AXES_ALL, 0.7), "unknown ");
  factors("pp=2 dp_replicate=2 dp_shard=2 cp=2 tp=2 block=2", AD_AXES_ALL, 0.125);
  assert_int_equal(causes.count, 20);
}

static void a_document_has_one_cause_or_those_that_are_possible(void **state) {
  json_t *document = json_object(), *list = json_array();
  char text[64];
  ad_cause_set(document, json_incref(list));
  assert_false(ad_cause_is_reported(document));
  assert_string_equal(ad_cause_print(document, text, sizeof text), "");
  json_array_append_new(list, ad_cause_document("averaged", "tp", 0.5, "averaged over tp", ""));
  ad_cause_set(document, json_incref(list));
  assert_true(json_is_object(json_object_get(document, "cause")) && ad_cause_is_reported(document));
  assert_int_equal(json_array_size(json_object_get(document, "possible_causes")), 0);
  assert_true(json_is_null(json_object_get(json_object_get(document, "cause"), "place")));
  assert_string_equal(ad_cause_print(document, text, sizeof text), "averaged over tp");
  for (int i = 0; i < 3; i++)
    json_array_append_new(list, ad_cause_document("averaged", "dp", 0.5, "averaged over dp", "a bridge"));
  ad_cause_set(document, list);
  assert_true(json_is_null(json_object_get(document, "cause")) && ad_cause_is_reported(document));
  assert_int_equal(json_array_size(json_object_get(document, "possible_causes")), 4);
  assert_text_says(ad_cause_print(document, text, sizeof text), "tp", "3");
  json_decref(document);
}

static void a_factor_of_no_group_stays_unknown(void **state) {
  assert_int_equal(diagnose(0.7, 0.3, 1, 1, 0, -1).kind, AD_CAUSE_UNKNOWN);
}

static void replicas_that_differ_were_not_reduced_if_together_they_are_the_sum(void **state) {
  ad_cause cause = diagnose(0.9, 0.4, 0, 0, SHARD, -1);
  assert_int_equal(cause.kind, AD_CAUSE_REPLICAS_DIFFER);
  assert_int_equal(cause.axes, SHARD);
  assert_text_says(cause.text, "dp_shard");
  ad_diagnose_parts(SHARD, &causes);
  assert_int_equal(causes.count, 1);
  assert_int_equal(causes.list[0].kind, AD_CAUSE_PARTIAL);
  assert_int_equal(causes.list[0].axes, SHARD);
}

static void one_odd_replica_is_named(void **state) {
  ad_cause cause = diagnose(1, 0, 1, 0, REPLICATE, 4);
  assert_int_equal(cause.kind, AD_CAUSE_REPLICAS_DIFFER);
  assert_text_says(cause.text, "rank 4");
}

static void equal_replicas_that_are_wrong_miss_addends(void **state) {
  assert_int_equal(diagnose(0.8, 0.4, 0, 1, 0, -1).kind, AD_CAUSE_MISSING);
}

static void an_error_that_16_bits_may_make_is_not_reported_as_one_of_addends_alone(void **state) {
  diagnose_all(1.0005, 2e-3, 0, 1, 0, -1);
  assert_int_equal(causes.count, 2);
  assert_int_equal(causes.list[0].kind, AD_CAUSE_MISSING);
  assert_int_equal(causes.list[1].kind, AD_CAUSE_ROUNDING);
}

static void a_tiny_difference_is_rounding(void **state) {
  assert_int_equal(diagnose(1, 1e-9, 0, 1, 0, -1).kind, AD_CAUSE_ROUNDING);
}

static void a_number_that_is_none_is_reported_as_no_error_of_sums(void **state) {
  const double errors[] = {NAN, INFINITY};
  for (int i = 0; i < 2; i++) {
    ad_cause cause = diagnose(NAN, errors[i], 0, 1, 0, -1);
    assert_int_equal(cause.kind, AD_CAUSE_UNKNOWN);
    assert_text_says(cause.text, NULL);
  }
}

/* ---- thresholds, each from both sides ---- */

static void a_factor_is_a_groups_within_a_millionth(void **state) {
  static const double sizes[] = {2, 3, 6};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int side = -1; side <= 1; side += 2) {
      double within = 1 + side * 0.99e-6, beyond = 1 + side * 1.01e-6, n = sizes[i];
      assert_int_equal(diagnose(within / n, 1 - 1 / n, 1, 1, 0, -1).kind, AD_CAUSE_AVERAGED);
      assert_int_equal(diagnose(beyond / n, 1 - 1 / n, 1, 1, 0, -1).kind, AD_CAUSE_UNKNOWN);
      assert_int_equal(diagnose(within * n, n - 1, 1, 1, 0, -1).kind, AD_CAUSE_DOUBLED);
      assert_int_equal(diagnose(beyond * n, n - 1, 1, 1, 0, -1).kind, AD_CAUSE_UNKNOWN);
    }
}

static ad_cause_kind kind_of(double error, double bound, int proportional, int count) {
  ad_check_param param = {
      .ratio = 1 + error, .max_rel_err = error, .bound = bound, .update_equal = 1, .replicas_equal = 1};
  ad_diagnose(mesh, REPLICATE | SHARD, &param, proportional, 0, -1, &causes);
  assert_int_equal(causes.count, count);
  return causes.list[0].kind;
}

/* An error counts as rounding below 1e-6 in f64, and below 1/32 if the precision policy rounds to fewer bits. */
static void an_error_is_rounding_below_what_a_narrower_dtype_makes(void **state) {
  assert_int_equal(kind_of(0.99e-6, 1e-12, 0, 1), AD_CAUSE_ROUNDING);
  assert_int_equal(kind_of(1.01e-6, 1e-12, 0, 2), AD_CAUSE_MISSING);
  assert_int_equal(kind_of(0.99e-6, 1e-12, 1, 1), AD_CAUSE_ROUNDING);
  assert_int_equal(kind_of(1.01e-6, 1e-12, 1, 1), AD_CAUSE_UNKNOWN); /* the gradient is a multiple of the right one */
  assert_int_equal(kind_of(0.99 / 32, 1e-12, 0, 2), AD_CAUSE_MISSING);
  assert_int_equal(kind_of(1.01 / 32, 1e-12, 0, 1), AD_CAUSE_MISSING);
  for (int narrow = 0; narrow < 2; narrow++) {
    double bound = narrow ? 1.01e-9 : 0.99e-9;
    assert_int_equal(kind_of(1e-3, bound, 0, narrow ? 1 : 2), narrow ? AD_CAUSE_ROUNDING : AD_CAUSE_MISSING);
  }
  assert_int_equal(kind_of(0.99 / 32, 1e-6, 0, 1), AD_CAUSE_ROUNDING);
  assert_int_equal(kind_of(1.01 / 32, 1e-6, 0, 1), AD_CAUSE_MISSING);
}

/* sum_share and process_share give the error as a part of its bound: 1 is still within it. */
static void rounding_names_what_exceeds_its_share(void **state) {
  static const struct {
    double sum, process;
    const char *exceeds;
  } cases[] = {{1, 1, "no share exceeds its part"},
               {1, 1.01, "process_share exceeds its part"},
               {1.01, 1, "sum_share exceeds its part"},
               {1.01, 1.01, "sum_share exceeds its part"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_check_param param = {.ratio = 1,
                            .max_rel_err = 1e-9,
                            .bound = 1e-12,
                            .sum_share = cases[i].sum,
                            .process_share = cases[i].process,
                            .update_equal = 1,
                            .replicas_equal = 1};
    ad_diagnose(mesh, REPLICATE | SHARD, &param, 0, 0, -1, &causes);
    assert_int_equal(causes.count, 1);
    assert_int_equal(causes.list[0].kind, AD_CAUSE_ROUNDING);
    assert_says_in(cases[i].exceeds, causes.list[0].text, SAYS_FACTS(NULL));
  }
}

/* A check of parameters with these ratios; one whose gradient no step reached has 0. */
static ad_check_result *result_of(const double *ratios, size_t count) {
  ad_check_result *result = calloc(1, sizeof *result + count * sizeof *result->params);
  result->param_count = count;
  for (size_t i = 0; i < count; i++)
    result->params[i] = (ad_check_param){.ratio = ratios[i], .reached = ratios[i] != 0, .proportional = 1};
  return result;
}

static int count_of_stages(const ad_causes *of) {
  int count = 0;
  for (int i = 0; i < of->count; i++) count += of->list[i].axes == AD_AXES(AD_PP) && of->list[i].factor == 0.25;
  return count;
}

/* Only what divides every gradient may be an average over the stages, each of which has some of them. */
static void a_division_of_every_gradient_by_the_stages_names_them_once(void **state) {
  static const struct {
    double ratios[3];
    int named;
  } cases[] = {{{0.25, 0.25, 0.25}, 1}, {{0.25, 0, 0.25}, 1}, {{0.25, 1, 0.25}, 0}, {{0.25, 0.25, 0.2501}, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_check_result *result = result_of(cases[i].ratios, 3);
    ad_diagnose_stages(result, 4);
    ad_diagnose_stages(result, 4);
    for (size_t p = 0; p < 3; p++)
      assert_int_equal(count_of_stages(&result->params[p].causes), cases[i].named && cases[i].ratios[p] != 0);
    free(result);
  }
}

/* What is wrong without an axis says why none is named. */
static void a_cause_without_axes_says_why(void **state) {
  const struct {
    double ratio, error;
    int proportional;
    ad_cause_kind kind;
    ad_no_axis why;
  } cases[] = {
      {0.5, 0.5, 1, AD_CAUSE_AVERAGED, AD_AXIS_IS_NAMED},
      {0.7, 0.3, 1, AD_CAUSE_UNKNOWN, AD_NO_AXIS_NO_GROUP},
      {0.7, 0.9, 0, AD_CAUSE_MISSING, AD_NO_AXIS_REPLICAS_AGREE},
      {1, 0.9e-6, 0, AD_CAUSE_ROUNDING, AD_NO_AXIS_ROUNDING},
      {1, INFINITY, 0, AD_CAUSE_UNKNOWN, AD_NO_AXIS_NOT_SHOWN},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_cause cause = diagnose(cases[i].ratio, cases[i].error, cases[i].proportional, 1, 0, -1);
    assert_int_equal(cause.kind, cases[i].kind);
    assert_int_equal(ad_cause_no_axis(&cause), cases[i].why);
  }
  ad_diagnose_update(&causes);
  assert_int_equal(ad_cause_no_axis(&causes.list[0]), AD_NO_AXIS_REPLICAS_AGREE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sound_gradient_has_no_cause),
      cmocka_unit_test(a_division_of_every_gradient_by_the_stages_names_them_once),
      cmocka_unit_test(the_inverse_of_a_group_names_its_average),
      cmocka_unit_test(the_size_of_a_group_names_its_double_sum),
      cmocka_unit_test(the_size_of_a_group_that_is_not_summed_over_names_a_divisor_without_it),
      cmocka_unit_test(a_factor_that_several_groups_have_names_all_of_them),
      cmocka_unit_test(a_document_has_one_cause_or_those_that_are_possible),
      cmocka_unit_test(a_factor_of_no_group_stays_unknown),
      cmocka_unit_test(replicas_that_differ_were_not_reduced_if_together_they_are_the_sum),
      cmocka_unit_test(one_odd_replica_is_named),
      cmocka_unit_test(equal_replicas_that_are_wrong_miss_addends),
      cmocka_unit_test(an_error_that_16_bits_may_make_is_not_reported_as_one_of_addends_alone),
      cmocka_unit_test(a_tiny_difference_is_rounding),
      cmocka_unit_test(a_number_that_is_none_is_reported_as_no_error_of_sums),
      cmocka_unit_test(a_factor_is_a_groups_within_a_millionth),
      cmocka_unit_test(an_error_is_rounding_below_what_a_narrower_dtype_makes),
      cmocka_unit_test(rounding_names_what_exceeds_its_share),
      cmocka_unit_test(a_cause_without_axes_says_why),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
