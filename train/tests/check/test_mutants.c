/* Tests the lists of known bugs, and that exactly those are tried that can have an effect in a recipe. */
#include <math.h>

#include "says.h"
#include "world.h"

#include "check/document.h"
#include "draw.h"
#include "tensor/ring.h"

/* The verdicts of all known bugs and of one derived mutant. */
static ad_mutants *list_of(ad_recipe *recipe) {
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_mutants *tried;
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 1, 0, &tried));
  must(ad_mutants_try(recipe, &options, result, tried));
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
  return tried;
}

static ad_mutants *list(const char *mesh, const char *data, const char *train) {
  return list_of(small_recipe(mesh, data, train));
}

static const ad_mutant *find(const ad_mutants *p, const char *name) {
  for (size_t i = p->derived; i < p->count; i++)
    if (!strcmp(p->list[i].name, name)) return &p->list[i];
  fail_msg("no known mistake is called %s", name);
  return NULL;
}

static int has(const ad_mutants *p, const char *name) {
  return find(p, name)->killed_by != AD_KILLED_BY_NOT_APPLICABLE;
}
static const char *why(const ad_mutants *p, const char *name) { return find(p, name)->message; }

/* Why the mutant is not tried. The sentence is in its own list, for the worlds `of`. */
#define EXPECT_WHY(p, of, name, ...) assert_says_in(of ": " name, why((p), (name)), SAYS_FACTS(__VA_ARGS__))

static int count_tried(const ad_mutants *p) {
  int count = 0;
  for (size_t i = p->derived; i < p->count; i++) count += p->list[i].killed_by != AD_KILLED_BY_NOT_APPLICABLE;
  return count;
}

static void known_bugs_have_names_words_and_injection_points(void **state) {
  static ad_mutant all[128];
  size_t count = ad_known_list(NULL);
  assert_true(count >= 16 && count <= 128);
  assert_int_equal(ad_known_list(all), count);
  for (size_t i = 0; i < count; i++) {
    const ad_known_bug *known = all[i].known;
    for (size_t k = 0; k < i; k++) assert_string_not_equal(known->name, all[k].known->name);
    assert_string_equal(all[i].name, known->name);
    assert_true(strlen(known->words) > 10);
    assert_in_range(known->catalogue, 0, 37);
    assert_non_null(known->at[0].function);
    assert_true(known->needs != 0);
  }
}

static void is_killed_or_has_a_reason(const char *mesh, int tokens) {
  ad_mutants *p = list(mesh, tokens ? UNEQUAL : ", valid: [0]", ", microbatches: 2}\nshard: {zero: 2");
  for (size_t i = p->derived; i < p->count; i++) {
    const ad_mutant *tried = &p->list[i];
    if (tried->killed_by == AD_KILLED_BY_NONE) fail_msg("%s on %s: %s", tried->name, mesh, tried->message);
    if (tried->killed_by == AD_KILLED_BY_NOT_APPLICABLE) assert_true(strlen(tried->message) > 10);
  }
  ad_mutants_destroy(p);
}

static void every_mutant_is_killed_or_the_reason_is_given(void **state) {
  static const char *const meshes[] = {"dp_replicate=1", "dp_replicate=3", "dp_replicate=2 dp_shard=3", "dp_shard=2"};
  enum { WORLDS = 2 * sizeof meshes / sizeof *meshes };
  draw drawn = draw_cases("worlds of known mistakes", WORLDS, 0, 2);
  for (int i = 0; i < WORLDS; i++)
    if (is_drawn(&drawn, i)) is_killed_or_has_a_reason(meshes[i / 2], i % 2);
}

static void the_reason_names_what_is_missing(void **state) {
  ad_mutants *p = list("dp_replicate=3", "", ", microbatches: 1");
  EXPECT_WHY(p, "one microbatch", "mean-of-microbatch-means", NULL);
  EXPECT_WHY(p, "one microbatch", "overflow-per-rank", "f16");
  EXPECT_WHY(p, "one microbatch", "partial-after-all-reduce", "shard.zero");
  ad_mutants_destroy(p);
  p = list("dp_replicate=1", "", ", microbatches: 2}\nprecision: {param: bf16");
  EXPECT_WHY(p, "one rank in bf16", "mean-of-microbatch-means", NULL);
  EXPECT_WHY(p, "one rank in bf16", "first-step-unsynchronised", NULL);
  EXPECT_WHY(p, "one rank in bf16", "bucket-order", NULL);
  EXPECT_WHY(p, "one rank in bf16", "narrow-accumulate", "16 bits");
  EXPECT_WHY(p, "one rank in bf16", "statistics-in-bf16", "bf16", "precision.compute");
  ad_mutants_destroy(p);
}

static void on_one_rank_only_microbatches_and_groups_of_one_can_go_wrong(void **state) {
  ad_mutants *p = list("dp_replicate=1 dp_shard=1", UNEQUAL, ", microbatches: 1");
  assert_int_equal(count_tried(p), 13);
  assert_true(has(p, "state-of-another-parameter") && has(p, "state-sharded-otherwise"));
  assert_true(has(p, "add-to-itself-in-group-of-one") && has(p, "narrow-accumulate") && has(p, "master-in-bf16"));
  ad_mutants_destroy(p);
  p = list("dp_replicate=1 dp_shard=1", UNEQUAL, ", microbatches: 2");
  assert_int_equal(count_tried(p), 16);
  assert_true(has(p, "mean-of-microbatch-means") && has(p, "last-microbatch-only") && has(p, "update-per-microbatch"));
  ad_mutants_destroy(p);
}

/* By number: the update is judged by its bits. */
static void bugs_of_updates_are_killed_with_every_optimizer(void **state) {
  static const char *const optimizers[] = {"kind: adamw", "kind: sgd", "kind: sgd, momentum: 0.9",
                                           "kind: sgd, momentum: 0.9, nesterov: true"};
  static const char *const names[] = {"update-applied-twice", "momentum-forgotten", "decay-missing"};
  for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
    char train[128];
    snprintf(train, sizeof train, ", microbatches: 2}\nshard: {zero: 1}\noptimizer: {%s", optimizers[i]);
    ad_mutants *p = list("dp_shard=3", UNEQUAL, train);
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
      int has_none = i == 1 && n == 1;
      if (find(p, names[n])->killed_by != (has_none ? AD_KILLED_BY_NOT_APPLICABLE : AD_KILLED_BY_NUMBER))
        fail_msg("%s with %s: %s", names[n], optimizers[i], why(p, names[n]));
    }
    assert_int_equal(ad_mutants_survivors(p), 0);
    ad_mutants_destroy(p);
  }
  ad_recipe *recipe = small_recipe("dp_replicate=2", "", "}\noptimizer: {kind: sgd");
  recipe->optimizer.weight_decay = 0;
  ad_mutants *p = list_of(recipe);
  EXPECT_WHY(p, "nothing decays", "decay-missing", "train.weight_decay");
  EXPECT_WHY(p, "no state", "momentum-forgotten", NULL);
  ad_mutants_destroy(p);
}

static void equal_counts_hide_a_mean_of_means(void **state) {
  ad_mutants *p = list("dp_replicate=3", "", ", microbatches: 2");
  assert_false(has(p, "mean-of-microbatch-means"));
  assert_true(has(p, "last-microbatch-only") && has(p, "shifted-slice"));
  ad_mutants_destroy(p);
  p = list("dp_replicate=3", "", ", microbatches: 5"); /* 12 samples in 5 microbatches: some are smaller */
  assert_true(has(p, "mean-of-microbatch-means"));
  ad_mutants_destroy(p);
}

static void one_microbatch_is_the_last(void **state) {
  ad_mutants *p = list("dp_replicate=3", UNEQUAL, ", microbatches: 1");
  assert_false(has(p, "last-microbatch-only"));
  assert_false(has(p, "mean-of-microbatch-means"));
  ad_mutants_destroy(p);
}

/* A rank of a run with leaves has an earlier part of its own only if it has two leaves, whatever the number of microbatches. */
static void a_ranks_only_leaf_is_the_last(void **state) {
  ad_mutants *p = list("dp_shard=4", UNEQUAL, ", leaves: 4, microbatches: 2");
  EXPECT_WHY(p, "a leaf a rank", "last-microbatch-only", NULL);
  assert_false(has(p, "last-microbatch-only"));
  ad_mutants_destroy(p);
  static const char *const meshes[] = {"dp_shard=2", "dp_shard=3"}; /* on three ranks one has two leaves */
  for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
    p = list(meshes[i], UNEQUAL, ", leaves: 4");
    if (find(p, "last-microbatch-only")->killed_by != AD_KILLED_BY_TYPE)
      fail_msg("%s: %s", meshes[i], why(p, "last-microbatch-only"));
    ad_mutants_destroy(p);
  }
}

/* Over an axis of one rank, the only derived mutant that is executed is the one that leaves the axis out. */
static void an_axis_of_size_1_is_left_alone(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=3 dp_shard=1", UNEQUAL, ", microbatches: 2");
  ad_mutants *p;
  int along = 0;
  must(ad_mutants_create(recipe, 0, 0, &p));
  for (size_t i = 0; i < p->derived; i++) {
    const ad_mutation *mutation = &p->list[i].mutation;
    if (mutation->in_record || mutation->axis != AD_DP_SHARD) continue;
    along += mutation->operator_ == AD_OPERATOR_FEWER_AXES;
    assert_int_not_equal(mutation->operator_, AD_OPERATOR_MORE_AXES);
    assert_int_not_equal(mutation->operator_, AD_OPERATOR_OTHER_GROUP);
  }
  assert_true(along > 0);
  ad_mutants_destroy(p);
  ad_recipe_destroy(recipe);
}

static ad_mutants *list_sharded(const char *mesh, const char *more) {
  char train[128];
  snprintf(train, sizeof train, "%s}\nshard: {zero: 2", more);
  return list(mesh, UNEQUAL, train);
}

static void what_goes_wrong_between_two_reductions_needs_both_and_a_shard_that_waits(void **state) {
  ad_mutants *p = list_sharded("dp_replicate=3 dp_shard=2", ", microbatches: 2");
  assert_true(has(p, "partial-after-all-reduce") && has(p, "both-factors-when-one-runs"));
  ad_mutants_destroy(p);
  p = list_sharded("dp_replicate=1 dp_shard=2", ", microbatches: 2");
  assert_true(has(p, "partial-after-all-reduce") && !has(p, "both-factors-when-one-runs"));
  assert_true(has(p, "add-to-itself-in-group-of-one"));
  ad_mutants_destroy(p);
  p = list_sharded("dp_shard=2", ", microbatches: 2"); /* one reduction alone */
  assert_false(has(p, "partial-after-all-reduce") || has(p, "both-factors-when-one-runs"));
  ad_mutants_destroy(p);
  p = list_sharded("dp_replicate=3 dp_shard=2", ", microbatches: 2, sync: [none, all]");
  assert_false(has(p, "partial-after-all-reduce") || has(p, "both-factors-when-one-runs"));
  ad_mutants_destroy(p);
}

static void padding_is_counted_only_where_shards_are_uneven(void **state) {
  ad_mutants *p = list_sharded("dp_replicate=1 dp_shard=4", "");
  assert_false(has(p, "padding-counted"));
  ad_mutants_destroy(p);
  p = list_sharded("dp_replicate=1 dp_shard=3", "");
  assert_true(has(p, "padding-counted"));
  ad_mutants_destroy(p);
}

static void bugs_of_computing_need_bf16_and_full_formulas(void **state) {
  ad_mutants *p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {compute: bf16");
  assert_true(has(p, "product-sums-in-bf16") && has(p, "statistics-in-bf16") && has(p, "residual-in-bf16"));
  ad_mutants_destroy(p);
  p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {compute: bf16, residual: bf16");
  assert_true(has(p, "statistics-in-bf16") && !has(p, "residual-in-bf16"));
  ad_mutants_destroy(p);
  p = list("dp_replicate=1 tp=2", UNEQUAL, "}\nprecision: {compute: bf16");
  assert_string_equal(why(p, "statistics-in-bf16"),
                      "formulas are sharded (tp, cp, ep), and each sharding rounds differently");
  ad_mutants_destroy(p);
}

static void bugs_of_dtypes_need_a_policy_that_promises_more(void **state) {
  ad_mutants *p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {param: bf16");
  assert_false(has(p, "narrow-accumulate") || has(p, "bucket-by-raw-dtype") || has(p, "overflow-per-rank"));
  assert_true(has(p, "bucket-by-wide-gradient"));
  ad_mutants_destroy(p);
  p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {param: f16");
  assert_true(has(p, "overflow-per-rank"));
  ad_mutants_destroy(p);
  p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {param: bf16, overrides: {\"*.norm.*\": {grad: f32}}");
  assert_true(has(p, "narrow-accumulate") && has(p, "bucket-by-raw-dtype") && has(p, "bucket-by-wide-gradient"));
  for (size_t i = p->derived; i < p->count; i++) {
    const ad_mutant *tried = &p->list[i];
    int is_of_dtype = !strcmp(tried->name, "narrow-accumulate") || !strcmp(tried->name, "bucket-by-raw-dtype") ||
                      !strcmp(tried->name, "overflow-per-rank") || !strncmp(tried->name, "bf16-for-f16", 12) ||
                      !strcmp(tried->name, "bucket-by-wide-gradient") || !strcmp(tried->name, "product-sums-in-bf16") ||
                      !strcmp(tried->name, "statistics-in-bf16") || !strcmp(tried->name, "residual-in-bf16");
    assert_int_equal(ad_mutant_is_of_dtype(tried), is_of_dtype);
  }
  ad_mutants_destroy(p);
}

static void a_rank_without_tokens_shows_no_shift(void **state) {
  ad_mutants *p = list("dp_replicate=2", ", valid: [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]", ", microbatches: 1");
  assert_int_equal(find(p, "shifted-slice")->killed_by, AD_KILLED_BY_NO_EFFECT);
  EXPECT_WHY(p, "a rank without tokens", "shifted-slice", "rank 0");
  assert_true(has(p, "factor-wrong-width"));
  ad_mutants_destroy(p);
}

static void without_tokens_only_the_protocol_and_replicas_are_left(void **state) {
  ad_mutants *p = list("dp_replicate=2", ", valid: [0]", ", microbatches: 2");
  assert_int_equal(count_tried(p), 3);
  assert_true(has(p, "perturbed-replica") && has(p, "bucket-order") && has(p, "bucket-size"));
  ad_mutants_destroy(p);
}

/* A change of the last bit alone is no wrong gradient: the verdict must be that nothing killed it. */
static void change_the_last_bit(void *context, void *passing) {
  ad_known_bug_scene *scene = context;
  double *norm = passing;
  *norm = nextafter(*norm, INFINITY);
  scene->fired = 1;
}

static void what_a_ring_shows_is_known_from_its_turns(void **state) {
  key_ring alone = {.members = 1}, ring = {.members = 2};
  ring_turn_passing turns[] = {{.ring = &alone, .is_masked = 1}, {.ring = &ring}, {.ring = &ring, .is_masked = 1}};
  const ad_needs shown[] = {0, AD_NEED_RING, AD_NEED_RING | AD_NEED_MASKED_RING};
  for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
    ad_needs facts = 0;
    ad_known_watch(&facts);
    ad_inject(AD_INJECT_RING_TURN, &turns[i]);
    ad_injections_clear();
    assert_int_equal(facts, shown[i]);
  }
}

static void what_nothing_catches_is_a_survivor(void **state) {
  static const ad_known_bug last_bit = {.name = "last-bit",
                                        .words = "the norm is off by its last bit",
                                        .needs = AD_NEED_TOKENS,
                                        .at = {{AD_INJECT_NORM, change_the_last_bit}}};
  ad_recipe *recipe = small_recipe("dp_replicate=3", UNEQUAL, ", microbatches: 2");
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_mutants *tried;
  ad_check_result *result;
  must(ad_check_result_create(recipe, &result));
  must(ad_mutants_create(recipe, 1, 0, &tried));
  ad_mutant *first = &tried->list[tried->derived];
  first->known = &last_bit;
  snprintf(first->name, sizeof first->name, "%s", last_bit.name);
  must(ad_mutants_try(recipe, &options, result, tried));
  if (first->killed_by != AD_KILLED_BY_NONE)
    fail_msg("killed by %s: %s", ad_killed_by_name(first->killed_by), first->message);
  assert_int_equal(ad_mutants_survivors(tried), 1);
  ad_check_result_destroy(result);
  ad_mutants_destroy(tried);
  ad_recipe_destroy(recipe);
}

/* ---- known bugs of mixtures of experts ---- */

static ad_recipe *recipe_of_experts(void) {
  static const char text[] =
      "name: experts\nmodel: {kind: moe, layers: 2, d_model: 12, heads: 2, experts: 5, top_k: 2, expert_hidden: 4}\n"
      "data: {text: [/usr/share/common-licenses], seq: 6, valid: [1, 0.5, 0.25]}\n"
      "mesh: \"dp_shard=3 tp=2\"\nviews: {sparse: \"efsdp=2 ep=3 etp=1\"}\n"
      "train: {seed: 4, global_batch: 5, steps: 5, lr: 1e-2, clip: 0.5, microbatches: 2}\n";
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "experts.yaml", NULL, 0, &recipe));
  return recipe;
}

/* Tries one mutant by its name; *result gets the numbers of every parameter with it. */
static void try_alone(const ad_recipe *recipe, const char *name, ad_check_result *result) {
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_mutants *tried;
  must(ad_mutants_create(recipe, 1, 0, &tried));
  tried->list[0] = *find(tried, name);
  tried->derived = 0;
  tried->count = 1;
  must(ad_mutants_try(recipe, &options, result, tried));
  assert_int_equal(tried->list[0].killed_by, AD_KILLED_BY_NUMBER);
  assert_true(tried->list[0].expected_ratio == 3);
  ad_mutants_destroy(tried);
}

static int is_expert(const char *name) {
  return strstr(name, ".moe.") && !strstr(name, ".router") && !strstr(name, ".shared.");
}

static void experts_that_are_divided_by_too_few_ranks_are_ep_times_right_and_all_else_is_right(void **state) {
  static const char *const names[] = {"experts-divided-by-own-group", "experts-averaged-over-replicas"};
  for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
    ad_recipe *recipe = recipe_of_experts();
    ad_check_result *result;
    must(ad_check_result_create(recipe, &result));
    try_alone(recipe, names[n], result);
    for (size_t i = 0; i < result->param_count; i++) {
      const ad_check_param *param = &result->params[i];
      if (is_expert(param->name))
        assert_true(fabs(param->ratio - 3) < 1e-9);
      else if (param->max_rel_err > param->bound)
        fail_msg("%s: %s is off by %g", names[n], param->name, param->max_rel_err);
    }
    ad_check_result_destroy(result);
    ad_recipe_destroy(recipe);
  }
}

static void what_a_layer_that_runs_again_repeats_is_killed(void **state) {
  static const char *const names[] = {"recomputed-tokens-routed-again", "recomputed-choices-counted-again",
                                      "recomputed-bias-corrected-again"};
  const char *sets[] = {"train.recompute=layers"};
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_check_result *result;
  ad_recipe *recipe = NULL;
  ad_mutants *tried;
  must(ad_recipe_read(AD_TEST_SOURCE "/recipes/moe-pp.yaml", sets, 1, &recipe));
  must(ad_check_result_create(recipe, &result));
  for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
    must(ad_mutants_create(recipe, 1, 0, &tried));
    tried->list[0] = *find(tried, names[n]);
    tried->derived = 0;
    tried->count = 1;
    must(ad_mutants_try(recipe, &options, result, tried));
    if (tried->list[0].killed_by != AD_KILLED_BY_NUMBER) fail_msg("%s: %d", names[n], (int)tried->list[0].killed_by);
    ad_mutants_destroy(tried);
  }
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

static void where_nothing_can_be_mutated_the_answer_is_no_with_its_reason(void **state) {
  ad_check_options options = {.size = sizeof options, .mutate = 1};
  ad_check_result *result = calloc(1, sizeof *result + sizeof *result->params);
  assert_non_null(result);
  *result = (ad_check_result){.complete = 1, .initial_equal = 1, .updates_equal = 1, .counted = 8, .param_count = 1};
  result->params[0] = (ad_check_param){.ratio = 1, .reached = 1, .replicas_equal = 1};
  ad_mutants *nothing = list("dp_replicate=1", ", valid: [0]", ", microbatches: 1");
  ad_mutants *something = list("dp_replicate=1", "", ", microbatches: 1");
  ad_findings findings = {.options = &options, .result = result};
  assert_true(ad_findings_hold(&findings));
  findings.mutants = something;
  assert_true(ad_findings_hold(&findings));
  findings.mutants = nothing;
  assert_int_equal(ad_mutants_survivors(nothing), 0);
  assert_false(ad_findings_hold(&findings));
  assert_says_in("nothing could be planted", ad_findings_reason(&findings), SAYS_FACTS(NULL));
  result->counted = 0;
  assert_says_in("nothing was counted", ad_findings_reason(&findings), SAYS_FACTS("data.valid"));
  free(result);
  ad_mutants_destroy(something);
  ad_mutants_destroy(nothing);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(known_bugs_have_names_words_and_injection_points),
      cmocka_unit_test(every_mutant_is_killed_or_the_reason_is_given),
      cmocka_unit_test(the_reason_names_what_is_missing),
      cmocka_unit_test(on_one_rank_only_microbatches_and_groups_of_one_can_go_wrong),
      cmocka_unit_test(bugs_of_updates_are_killed_with_every_optimizer),
      cmocka_unit_test(equal_counts_hide_a_mean_of_means),
      cmocka_unit_test(one_microbatch_is_the_last),
      cmocka_unit_test(a_ranks_only_leaf_is_the_last),
      cmocka_unit_test(an_axis_of_size_1_is_left_alone),
      cmocka_unit_test(what_goes_wrong_between_two_reductions_needs_both_and_a_shard_that_waits),
      cmocka_unit_test(padding_is_counted_only_where_shards_are_uneven),
      cmocka_unit_test(bugs_of_computing_need_bf16_and_full_formulas),
      cmocka_unit_test(bugs_of_dtypes_need_a_policy_that_promises_more),
      cmocka_unit_test(a_rank_without_tokens_shows_no_shift),
      cmocka_unit_test(what_a_ring_shows_is_known_from_its_turns),
      cmocka_unit_test(what_nothing_catches_is_a_survivor),
      cmocka_unit_test(without_tokens_only_the_protocol_and_replicas_are_left),
      cmocka_unit_test(experts_that_are_divided_by_too_few_ranks_are_ep_times_right_and_all_else_is_right),
      cmocka_unit_test(what_a_layer_that_runs_again_repeats_is_killed),
      cmocka_unit_test(where_nothing_can_be_mutated_the_answer_is_no_with_its_reason),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
