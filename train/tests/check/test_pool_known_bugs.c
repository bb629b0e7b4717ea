/* Tests mistakes in programs on several pools (disjoint sets of ranks), each tried alone, with a loss that shows it:
 * by which factor each pool's gradients are wrong, what the diagnosis says, and where the mistake has no effect. */
#include <math.h>
#include "alone.h"
#include "draw.h"
#include "says.h"

/* Losses of the recipe, as bits; SHARED: all samples share the adversary's sources. */
enum { FAITHFULNESS = 1, STOCHASTIC = 2, SPARSITY = 4, ADVERSARIAL = 8, SHARED = 16 };

typedef struct pools {
  int ci, block, adv; /* ranks of the importance network, of each of two blocks, of the adversary */
} pools;

static ad_recipe *recipe_with(const pools *p, int losses, int blocks, int microbatches) {
  char text[1024];
  ad_recipe *recipe = NULL;
  snprintf(text, sizeof text,
           "name: pools\nmodel: {kind: decompose, layers: 1, d_model: 8, heads: 2, d_hidden: 8}\n"
           "data: {text: [/usr/share/common-licenses], seq: 4}\nimportance: {layers: 1, d_model: 8, heads: 2}\n"
           "sites: [{match: \"blocks.*.mlp.*\", components: 4}]\n"
           "losses: {faithfulness: {coefficient: %d}, stochastic: {coefficient: %d},\n"
           "  sparsity: {coefficient: %d, power: 0.9, beta: 0.5}, adversarial: {coefficient: %d}}\n"
           "ascent: {steps: 1, rule: adam, lr: 0.1, scope: %s}\n"
           "mesh: {ci: \"dp=%d\", blocks: \"block=%d dp=%d\", adv: \"dp=%d\"}\nplacement: disjoint\n"
           "train: {global_batch: %d, microbatches: %d, steps: 5, lr: 1e-2, seed: 4}\n",
           !!(losses & FAITHFULNESS), !!(losses & STOCHASTIC), !!(losses & SPARSITY), !!(losses & ADVERSARIAL),
           losses & SHARED ? "batch" : "sample", p->ci, blocks, p->block, p->adv, p->ci < 8 ? 8 : p->ci, microbatches);
  must(ad_recipe_parse(text, "pools.yaml", NULL, 0, &recipe));
  return recipe;
}

static ad_recipe *recipe_of(const pools *p, int losses) { return recipe_with(p, losses, 2, 1); }

/* ---- the signature of a mistake: factors and causes ---- */

static int is_of(const ad_check_param *param, const char *pool) { return !strncmp(param->name, pool, strlen(pool)); }

/* Checks that every parameter of the pool is `ratio` times the reference; NaN: wrong by no factor. */
static void has_ratio(const ad_check_result *result, const char *pool, double ratio) {
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    if (!is_of(param, pool)) continue;
    int is_right = param->max_rel_err < 1e-12;
    if (ratio == 1 && !is_right) fail_msg("%s is wrong by %g", param->name, param->max_rel_err);
    if (ratio != 1 && is_right) fail_msg("%s is right", param->name);
    if (isnan(ratio) || ratio == 1) continue;
    if (fabs(param->ratio / ratio - 1) > 1e-9) fail_msg("%s is %g times, not %g", param->name, param->ratio, ratio);
  }
}

typedef struct signature {
  pools pools;
  int losses;
  const char *begins, *has; /* the mistake's name begins with and contains */
  double ci, blocks;        /* factors of the gradients of both pools */
  ad_cause_kind kind;       /* of a cause of the worst parameter, with these axes and this place */
  ad_axes axes;
  const char *place, *facts[4]; /* of its text; place NULL: its addends are wrong by no factor */
} signature;

/* The first possible cause of this kind, with these axes and this place. */
static const ad_cause *cause_of(const ad_mutant *tried, ad_cause_kind kind, ad_axes axes, const char *place) {
  const ad_causes *causes = &tried->causes;
  for (int i = 0; i < causes->count; i++) {
    const ad_cause *cause = &causes->list[i];
    if (cause->kind == kind && cause->axes == axes && !strcmp(cause->place, place)) return cause;
  }
  fail_msg("%s: %s: %d causes, %s", tried->name, tried->param, causes->count,
           causes->count ? causes->list[0].text : "");
  return NULL;
}

/* Tries the mistake; the sentence of its cause is in the list of the test. */
static void shows(const char *test, const signature *s) {
  ad_recipe *recipe = recipe_of(&s->pools, s->losses);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  ad_mutant tried = try_alone(recipe, s->begins, s->has, result);
  if (tried.killed_by != AD_KILLED_BY_NUMBER)
    fail_msg("%s: %s %s", tried.name, ad_killed_by_name(tried.killed_by), tried.message);
  has_ratio(result, "ci.", s->ci);
  has_ratio(result, "blocks.", s->blocks);
  const ad_cause *cause =
      s->place ? cause_of(&tried, s->kind, s->axes, s->place) : &tried.causes.list[tried.causes.count - 1];
  assert_true(tried.causes.count > 0);
  assert_says_in(test, cause->text, s->facts);
  if (s->place)
    assert_true(fabs(cause->factor / tried.ratio - 1) < 1e-9);
  else
    assert_true(cause->kind == AD_CAUSE_UNKNOWN && !cause->axes);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}
#define SHOWS(...) shows(__func__, &(signature){__VA_ARGS__})

/* Checks that the mistake is not tried, because it would change nothing with these losses. */
static void is_not_injected(pools p, int losses, const char *name) {
  ad_recipe *recipe = recipe_of(&p, losses);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  assert_int_equal(try_alone(recipe, name, "", result).killed_by, AD_KILLED_BY_NOT_APPLICABLE);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

/* ---- mistakes with a factor ---- */

static const char one_seed[] = "one-seed-for-two-averages";
#define AVERAGED AD_CAUSE_AVERAGED, AD_AXES(AD_DP_SHARD), "ci"
#define NO_FACTOR \
  AD_CAUSE_UNKNOWN, 0, NULL, { NULL }
#define DOUBLED AD_CAUSE_DOUBLED, AD_AXES(AD_DP_SHARD), ""

static void a_seed_for_another_pools_average_is_off_by_both_sizes(void **state) {
  SHOWS({2, 4, 1}, STOCHASTIC, one_seed, "", 1, 0.5, AVERAGED, {"dp_shard (4)", "ci", "2"});
  SHOWS({6, 4, 1}, STOCHASTIC, one_seed, "", 1, 1.5, AVERAGED, {"dp_shard (4)", "ci", "6"});
  /* the axis `block` has 2 ranks too, so a second cause fits */
  SHOWS({4, 2, 1}, STOCHASTIC, one_seed, "", 1, 2, AVERAGED, {"dp_shard (2)", "ci", "4"});
  SHOWS({4, 2, 1}, STOCHASTIC, one_seed, "", 1, 2, DOUBLED, {"dp_shard"});
  is_not_injected((pools){4, 4, 1}, STOCHASTIC, one_seed);
  is_not_injected((pools){2, 4, 1}, SPARSITY, one_seed);
}

/* The sizes of both pools are named in any number of microbatches. A number of microbatches that gives the same factor
 * is named beside them, and then none is named alone. */
static void the_number_of_microbatches_is_no_pool(void **state) {
  static const pools sizes = {2, 4, 1};
  for (int microbatches = 1; microbatches <= 3; microbatches++) {
    ad_recipe *recipe = recipe_with(&sizes, STOCHASTIC, 1, microbatches);
    ad_check_result *result;
    must(ad_check_result_create(recipe, &result));
    ad_mutant tried = try_alone(recipe, one_seed, "", result);
    const ad_cause *averages = cause_of(&tried, AVERAGED);
    assert_text_says(averages->text, "dp_shard (4)", "ci", "2");
    assert_true(fabs(averages->factor - 0.5) < 1e-9);
    assert_int_equal(tried.causes.count, microbatches == 2 ? 2 : 1);
    if (microbatches == 2) assert_text_says(cause_of(&tried, AD_CAUSE_AVERAGED, 0, "microbatches")->text, NULL);
    ad_check_result_destroy(result);
    ad_recipe_destroy(recipe);
  }
}

static void on_38_ranks_the_factors_are_16_and_32(void **state) {
  pools many = {32, 2, 2};
  ad_recipe *recipe = recipe_of(&many, ADVERSARIAL);
  ad_check_result *result;
  SHOWS(many, STOCHASTIC, one_seed, "", 1, 16, AVERAGED, {"dp_shard (2)", "ci", "32"});
  must(ad_check_result_create(recipe, &result));
  ad_mutant averaged = try_alone(recipe, "averaged: ci.output.weight", "", result);
  assert_int_equal(averaged.killed_by, AD_KILLED_BY_NUMBER);
  assert_string_equal(averaged.param, "ci.output.weight");
  assert_int_equal(averaged.causes.count, 1);
  assert_int_equal(averaged.causes.list[0].kind, AD_CAUSE_AVERAGED);
  assert_int_equal(averaged.causes.list[0].axes, AD_AXES(AD_DP_SHARD));
  assert_text_says(averaged.causes.list[0].text, "dp_shard");
  assert_true(fabs(averaged.ratio * 32 - 1) < 1e-9);
  has_ratio(result, "blocks.", 1);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void a_leaders_gradient_that_is_broadcast_counts_for_each_replica(void **state) {
  SHOWS({2, 3, 2}, ADVERSARIAL, "leaders-gradient-broadcast", "", 1, 3, DOUBLED, {"dp_shard"});
  is_not_injected((pools){2, 3, 2}, STOCHASTIC, "leaders-gradient-broadcast");
  is_not_injected((pools){2, 1, 2}, ADVERSARIAL, "leaders-gradient-broadcast");
}

/* ---- mistakes without a factor ---- */

static void values_of_the_step_before_are_seen_in_the_second_step(void **state) {
  pools p = {2, 2, 2};
  ad_recipe *recipe = recipe_of(&p, ADVERSARIAL);
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  assert_int_equal(try_alone(recipe, "values-of-step-before", "", result).killed_by, AD_KILLED_BY_NUMBER);
  has_ratio(result, "blocks.", NAN);
  for (size_t i = 0; i < result->param_count; i++) assert_int_equal(result->params[i].step, 1);
  is_not_injected(p, SPARSITY, "values-of-step-before");
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void the_clamp_is_after_the_sum_over_pools(void **state) {
  pools p = {3, 2, 2};
  SHOWS(p, STOCHASTIC | ADVERSARIAL, "clamped-before-added", "", NAN, 1, NO_FACTOR);
  is_not_injected(p, STOCHASTIC, "clamped-before-added");
  is_not_injected(p, ADVERSARIAL, "clamped-before-added");
  is_not_injected(p, SPARSITY, "clamped-before-added");
}

static void a_local_sum_inside_the_logarithm_is_seen(void **state) {
  SHOWS({3, 2, 2}, SPARSITY, "left_out: ", "decompose/phases.c", NAN, 1, NO_FACTOR);
  ad_recipe *recipe = recipe_of(&(pools){3, 2, 2}, SPARSITY);
  ad_mutants *list;
  must(ad_mutants_create(recipe, 0, 0, &list));
  const ad_mutant *recorded = find(list, "left_out in the record: ", "decompose/phases.c", 1);
  assert_int_equal(recorded->killed_by, AD_KILLED_BY_TYPE);
  assert_text_says(recorded->message, "sparsity", "P", "dp_shard");
  ad_mutants_destroy(list);
  ad_recipe_destroy(recipe);
}

static void sources_of_a_sample_are_its_ranks_alone(void **state) {
  SHOWS({2, 2, 4}, ADVERSARIAL, "sources-summed-over-samples", "", NAN, NAN, NO_FACTOR);
  is_not_injected((pools){2, 2, 1}, ADVERSARIAL, "sources-summed-over-samples");
  is_not_injected((pools){2, 2, 4}, ADVERSARIAL | SHARED, "sources-summed-over-samples");
}

static void sources_of_a_batch_are_all_ranks(void **state) {
  SHOWS({2, 2, 4}, ADVERSARIAL | SHARED, "backward_identity: ", "sources.c", NAN, NAN, NO_FACTOR);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_seed_for_another_pools_average_is_off_by_both_sizes),
      cmocka_unit_test(the_number_of_microbatches_is_no_pool),
      cmocka_unit_test(on_38_ranks_the_factors_are_16_and_32),
      cmocka_unit_test(a_leaders_gradient_that_is_broadcast_counts_for_each_replica),
      cmocka_unit_test(values_of_the_step_before_are_seen_in_the_second_step),
      cmocka_unit_test(the_clamp_is_after_the_sum_over_pools),
      cmocka_unit_test(a_local_sum_inside_the_logarithm_is_seen),
      cmocka_unit_test(sources_of_a_sample_are_its_ranks_alone),
      cmocka_unit_test(sources_of_a_batch_are_all_ranks),
  };
  enum { COUNT = sizeof tests / sizeof *tests };
  struct CMUnitTest taken[COUNT] = {{0}};
  draw d = draw_cases("mistakes of pools", COUNT, 0, COUNT);
  size_t count = 0;
  for (int i = 0; i < COUNT; i++)
    if (is_drawn(&d, i)) taken[count++] = tests[i];
  return _cmocka_run_group_tests("pool_mistakes", taken, count, NULL, NULL);
}
