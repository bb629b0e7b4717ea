/* Tests where matrices are divided, as a check tells the reference: at the first row and column of every block that a
 * rank stores, whatever axes shard them. */
#include "fused_program.h"

#include "check/cuts.h"

static void expect(const int64_t *found, size_t count, const int64_t *expected, const char *what) {
  size_t i = 0;
  for (; i < count && expected[i]; i++)
    if (found[i] != expected[i]) fail_msg("%s: cut %zu is at %lld", what, i, (long long)found[i]);
  if (i < count || expected[i]) fail_msg("%s: there are %zu cuts", what, count);
}

static void blocks_begin_where_the_storage_of_any_rank_begins(void **state) {
  static const struct {
    const char *mesh, *more;
    int64_t ranks, rows[2][6], cols[2][6]; /* of "up" [7, 10] and "down" [10, 5]; 0 ends a list */
  } cases[] = {
      {"dp_shard=1 tp=1", "", 1, {{0}, {0}}, {{0}, {0}}},
      {"dp_shard=2 tp=2", "shard: {zero: 0}", 4, {{0}, {5}}, {{5}, {0}}},
      {"dp_shard=3 tp=1", "shard: {zero: 3}", 3, {{2, 4}, {3, 6}}, {{0}, {0}}},
      {"dp_shard=2 tp=2", "shard: {zero: 3}", 4, {{3}, {2, 5, 7}}, {{5}, {0}}},
      {"dp_replicate=2 dp_shard=2 tp=3", "shard: {zero: 1}", 12, {{3}, {1, 3, 4, 6, 8}}, {{3, 6}, {0}}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *recipe = fused_recipe(cases[i].mesh, cases[i].more);
    ad_run_options options = {.size = sizeof options, .dtype = AD_F64};
    ad_comm *comm;
    ad_run *run;
    ad_cuts cuts;
    must(ad_comm_open_dry(0, cases[i].ranks, &comm));
    must(ad_run_create(comm, recipe, &options, &run));
    must(ad_cuts_create(run, &cuts));
    assert_int_equal(cuts.count, 3);
    for (int p = 0; p < 2; p++) {
      expect(cuts.list[p].rows, cuts.list[p].row_count, cases[i].rows[p], cases[i].mesh);
      expect(cuts.list[p].cols, cuts.list[p].col_count, cases[i].cols[p], cases[i].mesh);
    }
    assert_true(!cuts.list[2].row_count && !cuts.list[2].col_count);
    ad_cuts_release(&cuts);
    ad_run_destroy(run);
    ad_comm_close(comm);
    ad_recipe_destroy(recipe);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_begin_where_the_storage_of_any_rank_begins)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
