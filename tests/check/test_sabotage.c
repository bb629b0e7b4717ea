/* Which mistakes are planted: those that can show, and no others. */
#include "world.h"

typedef struct planted {
  ad_sabotage list[AD_SABOTAGE_MAX];
  ad_unplanted hidden[AD_SWITCH_COUNT];
  size_t count, hidden_count;
} planted;

static planted *list(const char *mesh, const char *data, const char *train) {
  planted *p = calloc(1, sizeof *p);
  ad_recipe *recipe = small_recipe(mesh, data, train);
  must(ad_sabotage_list(recipe, p->list, &p->count, p->hidden, &p->hidden_count));
  ad_recipe_destroy(recipe);
  return p;
}

static int has(const planted *p, const char *name) {
  for (size_t i = 0; i < p->count; i++)
    if (!strcmp(p->list[i].name, name)) return 1;
  return 0;
}

static const char *why(const planted *p, const char *name) {
  for (size_t i = 0; i < p->hidden_count; i++)
    if (!strcmp(p->hidden[i].name, name)) return p->hidden[i].why;
  return "";
}

static int is_planted(const planted *p, const char *name) {
  size_t length = strlen(name);
  for (size_t i = 0; i < p->count; i++)
    if (!strncmp(p->list[i].name, name, length) && strchr(":", p->list[i].name[length])) return 1;
  return 0;
}

static void every_mistake_is_planted_or_the_reason_is_said(void **state) {
  static const char *const meshes[] = {"dp_replicate=1", "dp_replicate=3", "dp_replicate=2 dp_shard=3", "dp_shard=2"};
  for (size_t m = 0; m < sizeof meshes / sizeof *meshes; m++) {
    for (int tokens = 0; tokens < 2; tokens++) {
      planted *p = list(meshes[m], tokens ? UNEQUAL : ", valid: [0]", ", microbatches: 2}\nshard: {zero: 2");
      for (int which = 0; which < AD_SWITCH_COUNT; which++) {
        const char *name = ad_switch_at((ad_switch)which)->name;
        assert_int_equal(is_planted(p, name), !*why(p, name));
      }
      free(p);
    }
  }
}

static void the_reason_names_what_is_missing(void **state) {
  planted *p = list("dp_replicate=3", "", ", microbatches: 1");
  assert_string_equal(why(p, "mean-of-microbatch-means"), "a step has one microbatch");
  assert_string_equal(why(p, "overflow-per-rank"), "no gradient is f16 on its way (precision)");
  assert_non_null(strstr(why(p, "partial-after-all-reduce"), "shard.zero"));
  free(p);
  p = list("dp_replicate=1", "", ", microbatches: 2}\nprecision: {param: bf16");
  assert_string_equal(why(p, "mean-of-microbatch-means"), "every microbatch counts the same number of tokens");
  assert_string_equal(why(p, "skip-reduction"), "no gradient is summed over several ranks");
  assert_string_equal(why(p, "bucket-order"), "no bucket's first reduction is over several ranks");
  assert_non_null(strstr(why(p, "narrow-accumulate"), "16 bits"));
  free(p);
}

static void on_one_rank_only_microbatches_and_groups_of_one_can_go_wrong(void **state) {
  planted *p = list("dp_replicate=1 dp_shard=1", UNEQUAL, ", microbatches: 1");
  assert_int_equal(p->count, 5);
  assert_true(has(p, "add-to-itself-in-group-of-one") && has(p, "narrow-accumulate"));
  free(p);
  p = list("dp_replicate=1 dp_shard=1", UNEQUAL, ", microbatches: 2");
  assert_int_equal(p->count, 7);
  assert_true(has(p, "mean-of-microbatch-means") && has(p, "last-microbatch-only"));
  free(p);
}

static void equal_counts_hide_a_mean_of_means(void **state) {
  planted *p = list("dp_replicate=3", "", ", microbatches: 2");
  assert_false(has(p, "mean-of-microbatch-means"));
  assert_true(has(p, "last-microbatch-only") && has(p, "local-count"));
  free(p);
  p = list("dp_replicate=3", "", ", microbatches: 5"); /* 12 samples in 5 parts */
  assert_true(has(p, "mean-of-microbatch-means"));
  free(p);
}

static void one_microbatch_is_the_last(void **state) {
  planted *p = list("dp_replicate=3", UNEQUAL, ", microbatches: 1");
  assert_false(has(p, "last-microbatch-only"));
  assert_false(has(p, "mean-of-microbatch-means"));
  free(p);
}

static void an_axis_of_size_1_is_left_alone(void **state) {
  planted *p = list("dp_replicate=3 dp_shard=1", UNEQUAL, ", microbatches: 2");
  assert_true(has(p, "average-instead-of-sum:dp_replicate"));
  assert_false(has(p, "average-instead-of-sum:dp_shard"));
  free(p);
  p = list("dp_replicate=3 dp_shard=2", UNEQUAL, ", microbatches: 2");
  assert_true(has(p, "average-instead-of-sum:dp_replicate") && has(p, "average-instead-of-sum:dp_shard"));
  assert_true(has(p, "skip-reduction:dp_shard") && has(p, "double-reduction:dp_shard"));
  assert_int_equal(p->count, 19);
  assert_false(has(p, "add-to-itself-in-group-of-one"));
  free(p);
}

static planted *list_cut(const char *mesh, const char *more) {
  char train[128];
  snprintf(train, sizeof train, "%s}\nshard: {zero: 2", more);
  return list(mesh, UNEQUAL, train);
}

static void what_goes_wrong_between_two_reductions_needs_both_and_a_shard_that_waits(void **state) {
  planted *p = list_cut("dp_replicate=3 dp_shard=2", ", microbatches: 2");
  assert_true(has(p, "partial-after-all-reduce") && has(p, "both-factors-when-one-runs"));
  free(p);
  p = list_cut("dp_replicate=1 dp_shard=2", ", microbatches: 2");
  assert_true(has(p, "partial-after-all-reduce") && !has(p, "both-factors-when-one-runs"));
  assert_true(has(p, "add-to-itself-in-group-of-one") && !has(p, "replica-counted-in-norm"));
  free(p);
  p = list_cut("dp_replicate=3 dp_shard=2", ", microbatches: 2, sync: [none, all]");
  assert_false(has(p, "partial-after-all-reduce") || has(p, "both-factors-when-one-runs"));
  free(p);
}

static void padding_is_counted_only_where_shards_are_uneven(void **state) {
  planted *p = list_cut("dp_replicate=1 dp_shard=4", "");
  assert_false(has(p, "padding-counted"));
  free(p);
  p = list_cut("dp_replicate=1 dp_shard=3", "");
  assert_true(has(p, "padding-counted"));
  free(p);
}

static void dtype_mistakes_need_a_contract_that_promises_more(void **state) {
  planted *p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {param: bf16");
  assert_false(has(p, "narrow-accumulate") || has(p, "bucket-by-raw-dtype") || has(p, "overflow-per-rank"));
  free(p);
  p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {param: f16");
  assert_true(has(p, "overflow-per-rank"));
  free(p);
  p = list("dp_replicate=3", UNEQUAL, "}\nprecision: {param: bf16, overrides: {\"*.norm.*\": {grad: f32}}");
  assert_true(has(p, "narrow-accumulate") && has(p, "bucket-by-raw-dtype"));
  for (size_t i = 0; i < p->count; i++)
    assert_int_equal(p->list[i].of_dtype,
                     !strcmp(p->list[i].name, "narrow-accumulate") || !strcmp(p->list[i].name, "bucket-by-raw-dtype"));
  free(p);
}

static void a_rank_without_tokens_shows_no_shift(void **state) {
  planted *p = list("dp_replicate=2", ", valid: [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0]", ", microbatches: 1");
  assert_false(has(p, "shifted-slice"));
  assert_true(has(p, "average-instead-of-sum:dp_replicate"));
  free(p);
}

static void without_tokens_only_the_protocol_and_replicas_are_left(void **state) {
  planted *p = list("dp_replicate=2", ", valid: [0]", ", microbatches: 2");
  assert_int_equal(p->count, 3);
  assert_true(has(p, "perturbed-replica") && has(p, "bucket-order") && has(p, "bucket-size"));
  free(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_mistake_is_planted_or_the_reason_is_said),
      cmocka_unit_test(the_reason_names_what_is_missing),
      cmocka_unit_test(on_one_rank_only_microbatches_and_groups_of_one_can_go_wrong),
      cmocka_unit_test(equal_counts_hide_a_mean_of_means),
      cmocka_unit_test(one_microbatch_is_the_last),
      cmocka_unit_test(an_axis_of_size_1_is_left_alone),
      cmocka_unit_test(what_goes_wrong_between_two_reductions_needs_both_and_a_shard_that_waits),
      cmocka_unit_test(padding_is_counted_only_where_shards_are_uneven),
      cmocka_unit_test(dtype_mistakes_need_a_contract_that_promises_more),
      cmocka_unit_test(a_rank_without_tokens_shows_no_shift),
      cmocka_unit_test(without_tokens_only_the_protocol_and_replicas_are_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
