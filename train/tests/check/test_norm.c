/* Tests what is said of a norm that counts some gradients more or less than once: which parameter, which axes, and how
 * often. */
#include "world.h"

#include <math.h>

#include "check/no_axis.h"
#include "check/norm.h"
#include "check/checker.h"
#include "step/run.h"

/* Whether the mistake is made in the norm: in its sum, or in the choice of the copy that counts. */
static int is_of_norm(const ad_mutant *tried) {
  if (tried->known) return strstr(tried->name, "norm") != NULL;
  if (tried->mutation.in_record) return 0;
  return !strcmp(tried->mutation.place.what, "norm") || tried->mutation.operator_ == AD_OPERATOR_ONCE_EVERYWHERE;
}

/* Makes the mutants of the recipe's norms alone, and destroys the recipe. */
static ad_mutants *mutate_in(ad_recipe *recipe) {
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_mutants *tried;
  ad_check_result *result;
  size_t count = 0, derived = 0;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 0, 0, &tried));
  for (size_t i = 0; i < tried->count; i++) {
    if (!is_of_norm(&tried->list[i])) continue;
    derived += i < tried->derived;
    tried->list[count++] = tried->list[i];
  }
  tried->count = count;
  tried->derived = derived;
  must(ad_mutants_try(recipe, &options, result, tried));
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
  return tried;
}

static ad_mutants *mutate(const char *mesh, const char *data, const char *train) {
  return mutate_in(small_recipe(mesh, data, train));
}

/* An encoder on some ranks, and a model on two others. */
static ad_recipe *disjoint_recipe(const char *encoder) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: disjoint\n"
           "model: {kind: ocr, encoder_layers: 1, encoder_d_model: 8, encoder_heads: 1, patch: 8, layers: 1,\n"
           "  d_model: 8, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], chars: 4, height: 16, width: 32, sizes: [9, 11],\n"
           "  fonts: [/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf]}\n"
           "mesh: {encoder: \"%s\", model: \"cp=2\"}\nplacement: disjoint\n"
           "train: {seed: 4, global_batch: 12, steps: 5, lr: 1e-2, clip: 0.5}\n",
           encoder);
  must(ad_recipe_parse(text, "disjoint.yaml", NULL, 0, &recipe));
  return recipe;
}

static const ad_mutant *find(const ad_mutants *tried, const char *name) {
  for (size_t i = 0; i < tried->count; i++)
    if (!strncmp(tried->list[i].name, name, strlen(name))) return &tried->list[i];
  fail_msg("no mistake begins with `%s`", name);
  return NULL;
}

/* Expects that the first cause of the mistake has this kind, these axes and this factor; NaN: a part of the squares. */
static const ad_mutant *expect(const ad_mutants *tried, const char *name, ad_cause_kind kind, ad_axes axes,
                               double factor) {
  const ad_mutant *one = find(tried, name);
  const ad_cause *cause = &one->causes.list[0];
  int is_factor = isnan(factor) ? cause->factor > 0 && cause->factor < 1 : fabs(cause->factor - factor) < 1e-6;
  if (one->killed_by != AD_KILLED_BY_NUMBER || !one->causes.count || cause->kind != kind || cause->axes != axes ||
      !is_factor)
    fail_msg("%s: killed by %s, %s %#x %g: %s (%s)", one->name, ad_killed_by_name(one->killed_by),
             ad_cause_name(cause->kind), cause->axes, cause->factor, cause->text, one->message);
  assert_true(one->param[0] && one->message[0] && isnan(one->ratio));
  return one;
}

static void each_has_param_cause_and_message(const ad_mutants *tried) {
  for (size_t i = 0; i < tried->count; i++) {
    const ad_mutant *one = &tried->list[i];
    if (one->killed_by != AD_KILLED_BY_NUMBER) continue;
    if (!one->param[0] || !one->causes.count || !one->message[0]) fail_msg("%s: %s", one->name, one->message);
  }
}

/* Copies along dp_replicate, shards along dp_shard. */
static void replicas_and_shards_are_named_with_their_axes(void **state) {
  const ad_axes both = AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD);
  ad_mutants *tried = mutate("dp_replicate=3 dp_shard=2 tp=1", "", ", microbatches: 1}\nshard: {zero: 2");
  each_has_param_cause_and_message(tried);
  /* one cause each: a set of axes with an axis of one rank has as many ranks as the set without it */
  assert_int_equal(expect(tried, "doubled: norm", AD_CAUSE_DOUBLED, both, 6)->causes.count, 1);
  assert_int_equal(expect(tried, "averaged: norm", AD_CAUSE_AVERAGED, both, 1.0 / 6)->causes.count, 1);
  expect(tried, "fewer_axes:dp_shard: norm", AD_CAUSE_PARTIAL, AD_AXES(AD_DP_SHARD), NAN);
  const ad_mutant *once =
      expect(tried, "once_everywhere: blocks.0.attn.wq", AD_CAUSE_DOUBLED, AD_AXES(AD_DP_REPLICATE), 3);
  assert_string_equal(once->param, "blocks.0.attn.wq");
  assert_int_equal(once->causes.count, 1);
  ad_mutants_destroy(tried);
}

/* The last stage's gradients are not on the first rank, and its copy of the tied embedding counts in no norm. */
static void stages_are_named(void **state) {
  ad_mutants *tried = mutate("pp=2 dp_shard=3", "", ", microbatches: 2");
  each_has_param_cause_and_message(tried);
  expect(tried, "norm-of-each-stage", AD_CAUSE_MISSING, AD_AXES(AD_PP), 0);
  const ad_mutant *twice = expect(tried, "embedding-twice-in-norm", AD_CAUSE_DOUBLED, AD_AXES(AD_PP), 2);
  assert_string_equal(twice->param, "embedding.weight");
  assert_int_equal(twice->causes.count, 1); /* no group has two ranks */
  expect(tried, "doubled: norm", AD_CAUSE_DOUBLED, AD_AXES(AD_PP) | AD_AXES(AD_DP_SHARD), 18);
  ad_mutants_destroy(tried);
}

/* Where a stage has two copies, twice may be both of them, or one of each stage. */
static void a_number_that_two_counts_give_has_two_causes(void **state) {
  ad_mutants *tried = mutate("pp=2 dp_shard=2", "", ", microbatches: 2");
  assert_true(find(tried, "embedding-twice-in-norm")->causes.count == 2);
  ad_mutants_destroy(tried);
}

/* Expects that the mistake's only cause has these axes, and this reason if it has none. */
static void expect_why(const ad_mutant *one, ad_axes axes, ad_no_axis why) {
  ad_no_axis reported;
  assert_int_equal(one->causes.count, 1);
  assert_int_equal(ad_mutant_axes(one, &reported), axes);
  if (reported != why) fail_msg("%s: %s", one->name, ad_no_axis_name(reported));
}

/* Disjoint pools have no axis in common, and no pp: a sum that is left out between them is named without an axis, and one
 * that is wrong over all ranks with the axes of the first rank's pool, if it has any. */
static void pools_have_no_axis_in_common(void **state) {
  const ad_axes dp = AD_AXES(AD_DP_SHARD), cp = AD_AXES(AD_CP);
  ad_mutants *tried = mutate_in(disjoint_recipe("dp=3"));
  each_has_param_cause_and_message(tried);
  const ad_mutant *out = expect(tried, "left_out: norm: all_reduce over dp_shard", AD_CAUSE_MISSING, 0, 0);
  assert_string_equal(out->param, "model.embedding.weight");
  expect_why(out, 0, AD_NO_AXIS_POOLS);
  expect_why(expect(tried, "doubled: norm: all_reduce over dp_shard", AD_CAUSE_DOUBLED, dp, 15), dp, AD_AXIS_IS_NAMED);
  expect_why(expect(tried, "averaged: norm: all_reduce over dp_shard", AD_CAUSE_AVERAGED, dp, 1.0 / 15), dp,
             AD_AXIS_IS_NAMED);
  expect_why(expect(tried, "doubled: norm: all_reduce over cp", AD_CAUSE_DOUBLED, cp, 2), cp, AD_AXIS_IS_NAMED);
  expect_why(expect(tried, "once_everywhere: model.embedding.weight", AD_CAUSE_DOUBLED, cp, 2), cp, AD_AXIS_IS_NAMED);
  ad_mutants_destroy(tried);
  tried = mutate_in(disjoint_recipe("dp=1"));
  expect_why(expect(tried, "doubled: norm: all_reduce over dp_shard", AD_CAUSE_DOUBLED, 0, 3), 0, AD_NO_AXIS_POOLS);
  expect_why(expect(tried, "averaged: norm: all_reduce over dp_shard", AD_CAUSE_AVERAGED, 0, 1.0 / 3), 0,
             AD_NO_AXIS_POOLS);
  ad_mutants_destroy(tried);
}

/* ---- which parameter changes the norm most ---- */

/* Parameter 1 counts `times`; parameter 2, whose squares are made a `share` of those of parameter 1, `other` times. The
 * rest counts once. named: the number of the parameter whose count is found to be wrong, 0 if none is. differs: the
 * number of a parameter whose copies differ, 0 if none do. */
typedef struct counted {
  double times, share, other;
  size_t named, differs;
} counted;

static void count(ad_checker *checker, const counted *c) {
  ad_array *one = &checker->gradients[1], *two = &checker->gradients[2];
  double *sums = checker->run->norms.groups[0].sums, *values = two->data, squares[2] = {0};
  assert_true(one->dtype == AD_F64 && two->dtype == AD_F64);
  for (size_t k = 0; k < ad_array_numel(one); k++) squares[0] += pow(((double *)one->data)[k], 2);
  for (size_t k = 0; k < ad_array_numel(two); k++) squares[1] += pow(values[k], 2);
  for (size_t k = 0; k < ad_array_numel(two); k++) values[k] *= sqrt(c->share * squares[0] / squares[1]);
  sums[1] = c->times * squares[0];
  sums[2] = c->other * c->share * squares[0];
  if (c->differs) checker->replicas[AD_PART_GRADIENT][c->differs].equal = 0;
}

static void a_count_is_wrong_beyond_a_millionth_and_the_largest_change_is_named(void **state) {
  static const counted cases[] = {{1, 1, 1, 0, 0},
                                  {1 + 0.9e-6, 1, 1, 0, 0},
                                  {1 - 0.9e-6, 1, 1, 0, 0},
                                  {1 + 1.1e-6, 1, 1, 1, 0},
                                  {1 - 1.1e-6, 1, 1, 1, 0},
                                  {1, 1, 10, 2, 0},
                                  {2, 1, 10, 2, 0},
                                  {10, 1, 2, 1, 0},
                                  {2, 0.1, 10.5, 1, 0},
                                  {2, 0.1, 11.5, 2, 0},
                                  {0, 1, 1.5, 1, 0},
                                  {0, 1, 2.5, 2, 0},
                                  {1 + 0.9e-6, 1e-8, 2, 2, 0}, /* what rounding adds to a large one is no change */
                                  {2, 1, 10, 0, 1},
                                  {2, 1, 10, 0, 3}}; /* of which copy the norm has, is unknown */
  ad_check_options options = {.size = sizeof options, .steps = 1};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const counted *c = &cases[i];
    ad_recipe *recipe = small_recipe("dp_shard=1", "", "");
    ad_checker checker;
    ad_comm *comm;
    ad_check_result *result;
    ad_step_report report;
    must(ad_comm_open_alone(&comm));
    must(ad_check_result_create(recipe, &result));
    ad_check_job job = {.recipe = recipe, .options = &options, .steps = 1, .result = result, .quiet = 1};
    must(ad_checker_create(&checker, comm, &job));
    ad_checker_begin(&checker);
    must(ad_checker_step(&checker, 0, &report));
    count(&checker, c);
    must(ad_norm_explain(&checker));
    const char *named = c->named ? result->params[c->named].name : "";
    if (strcmp(result->norm_param, named) != 0) fail_msg("case %zu: `%s`, not `%s`", i, result->norm_param, named);
    for (size_t p = 0; p < checker.param_count && c->named; p++) {
      double times = p == 1 ? c->times : p == 2 ? c->other : 1;
      assert_true(fabs(result->params[p].counted - times) < 1e-9);
    }
    ad_checker_destroy(&checker);
    ad_check_result_destroy(result);
    ad_comm_close(comm);
    ad_recipe_destroy(recipe);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(replicas_and_shards_are_named_with_their_axes),
      cmocka_unit_test(stages_are_named),
      cmocka_unit_test(a_number_that_two_counts_give_has_two_causes),
      cmocka_unit_test(pools_have_no_axis_in_common),
      cmocka_unit_test(a_count_is_wrong_beyond_a_millionth_and_the_largest_change_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
