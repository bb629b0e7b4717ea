/* Which mistakes are planted: those that can show, and no others. */
#include "world.h"

typedef struct planted {
  ad_sabotage list[AD_SABOTAGE_MAX];
  size_t count;
} planted;

static planted *list(const char *mesh, const char *data, const char *train) {
  planted *p = calloc(1, sizeof *p);
  ad_recipe *recipe = small_recipe(mesh, data, train);
  must(ad_sabotage_list(recipe, p->list, &p->count));
  ad_recipe_destroy(recipe);
  return p;
}

static int has(const planted *p, const char *name) {
  for (size_t i = 0; i < p->count; i++)
    if (!strcmp(p->list[i].name, name)) return 1;
  return 0;
}

static void on_one_rank_only_microbatches_can_go_wrong(void **state) {
  planted *p = list("dp_replicate=1 dp_shard=1", UNEQUAL, ", microbatches: 1");
  assert_int_equal(p->count, 0);
  free(p);
  p = list("dp_replicate=1 dp_shard=1", UNEQUAL, ", microbatches: 2");
  assert_int_equal(p->count, 2);
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
  assert_int_equal(p->count, AD_SWITCH_COUNT + 3);
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
      cmocka_unit_test(on_one_rank_only_microbatches_can_go_wrong),
      cmocka_unit_test(equal_counts_hide_a_mean_of_means),
      cmocka_unit_test(one_microbatch_is_the_last),
      cmocka_unit_test(an_axis_of_size_1_is_left_alone),
      cmocka_unit_test(a_rank_without_tokens_shows_no_shift),
      cmocka_unit_test(without_tokens_only_the_protocol_and_replicas_are_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
