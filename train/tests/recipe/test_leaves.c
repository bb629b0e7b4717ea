/* Tests train.leaves in recipes: the rounds of a step, who has which leaf, and what is refused before any rank starts. */
#include "parsing.h"

#include <stdio.h>
#include <string.h>
#include "addend/helpers.h"
#include "kernels/nodes.h"
#include "program/program.h"
#include "recipe/alone.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"

#define MODEL "model: {kind: gpt, layers: 2, d_model: 16, heads: 2}\ndata: {text: [a], seq: 8}\n"
#define GOOD                   \
  "name: r\n" MODEL            \
  "mesh: \"dp_replicate=2\"\n" \
  "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n"

/* ---- rounds ---- */

static void without_leaves_a_round_is_a_microbatch(void **state) {
  ad_recipe *r = READ(GOOD, "train.leaves=0", "train.microbatches=3", "shard.zero=2");
  assert_int_equal(r->train.leaves, 0);
  assert_int_equal(ad_recipe_rounds(r), 3);
  assert_int_equal(ad_recipe_parts(r), 3);
  assert_int_equal(ad_recipe_sync(r, 1), AD_SYNC_SHARD);
  assert_int_equal(ad_recipe_sync(r, 2), AD_SYNC_ALL);
  ad_recipe_destroy(r);
}

static void a_microbatch_has_as_many_rounds_as_its_leaves_need(void **state) {
  static const struct {
    const char *mesh, *leaves, *microbatches;
    int64_t rounds;
  } cases[] = {{"mesh=dp_replicate=2", "train.leaves=8", "train.microbatches=1", 4},
               {"mesh=dp_replicate=2", "train.leaves=8", "train.microbatches=2", 4},
               {"mesh=dp_replicate=2", "train.leaves=8", "train.microbatches=3", 6},
               {"mesh=dp_replicate=2 dp_shard=4 tp=2", "train.leaves=8", "train.microbatches=1", 1},
               {"mesh=dp_shard=3", "train.leaves=13", "train.microbatches=1", 5},
               {"mesh=tp=2", "train.leaves=5", "train.microbatches=2", 6}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_recipe *r = READ(GOOD, cases[i].mesh, cases[i].leaves, cases[i].microbatches);
    assert_int_equal(ad_recipe_rounds(r), cases[i].rounds);
    assert_int_equal(ad_recipe_parts(r), r->train.leaves);
    for (int64_t round = 0; round < cases[i].rounds; round++) /* nothing is sent before the last round */
      assert_int_equal(ad_recipe_sync(r, (size_t)round), round + 1 < cases[i].rounds ? AD_SYNC_NONE : AD_SYNC_ALL);
    ad_recipe_destroy(r);
  }
}

static void each_leaf_is_on_one_position(void **state) {
  static const char *const sets[][4] = {{"mesh=dp_replicate=2 dp_shard=2 tp=2", "train.leaves=16", "shard.zero=1"},
                                        {"mesh=dp_shard=3 tp=2", "train.leaves=13", "train.microbatches=2"},
                                        {"mesh=dp_replicate=8", "train.leaves=8", "train.microbatches=3"}};
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    int64_t times[16] = {0}, *leaves, ranks;
    ad_recipe *r = READ(GOOD, sets[i][0], sets[i][1], sets[i][2]);
    assert_int_equal(ad_recipe_world(r, &ranks), AD_OK);
    for (int64_t rank = 0; rank < ranks; rank++) {
      assert_int_equal(ad_recipe_list_leaves(r, rank, &leaves), AD_OK);
      for (int64_t round = 0, last = -1; round < ad_recipe_rounds(r); round++) {
        if (leaves[round] < 0) continue;
        assert_true(leaves[round] > last); /* ascending */
        times[last = leaves[round]]++;
      }
      ad_release(leaves);
    }
    int64_t beside = strstr(sets[i][0], "tp") ? 2 : 1;
    for (int64_t leaf = 0; leaf < r->train.leaves; leaf++) assert_int_equal(times[leaf], beside);
    ad_recipe_destroy(r);
  }
}

static void alone_one_rank_has_all_leaves(void **state) {
  ad_recipe *r = READ(GOOD, "mesh=dp_replicate=2 tp=2", "train.microbatches=3"), alone;
  int64_t *leaves;
  assert_int_equal(ad_alone_create(r, &alone), AD_OK);
  assert_int_equal(ad_recipe_rounds(r), 6);
  assert_int_equal(ad_recipe_rounds(&alone), 9);
  assert_int_equal(ad_recipe_list_leaves(&alone, 0, &leaves), AD_OK);
  int64_t count = 0;
  for (int64_t round = 0; round < 9; round++)
    if (leaves[round] >= 0) assert_int_equal(leaves[round], count++);
  assert_int_equal(count, 8);
  ad_release(leaves);
  ad_alone_release(&alone);
  ad_recipe_destroy(r);
}

static void the_program_has_a_microbatch_for_each_leaf(void **state) {
  ad_recipe *r = READ(GOOD, NULL);
  ad_comm *comm;
  ad_program *program;
  assert_int_equal(ad_comm_open_dry(1, 2, &comm), AD_OK);
  assert_int_equal(ad_recipe_program(r, comm, 0, &program), AD_OK);
  const ad_program_setting *setting = ad_program_setting_of(program);
  assert_int_equal(setting->leaves, 8);
  assert_int_equal(setting->microbatches, 8);
  assert_int_equal(setting->own_count, 4);
  for (int64_t i = 0; i < 4; i++) assert_int_equal(setting->own[i], 4 + i);
  assert_string_equal(ad_mesh_text(ad_program_module(program, 0)->mesh), "dp_replicate=2");
  ad_program_destroy(program);
  ad_comm_close(comm);
  ad_recipe_destroy(r);
}

/* ---- what is refused ---- */

static void keys_that_do_not_go_with_leaves_are_refused(void **state) {
  SET_SAYS(("--set train.leaves", "pp=2", "pp=1"), GOOD, "train.leaves=4", "mesh=pp=2 dp_shard=2");
  SET_SAYS(("--set train.leaves", "tp=2 dp_shard=2", "tp"), GOOD, "train.leaves=4", "mesh=tp=2 dp_shard=2");
  SET_SAYS(("--set train.leaves", "dp_replicate", "dp_shard", "dp_shard=2 dp_replicate=2"), GOOD, "train.leaves=4",
           "mesh=dp_shard=2 dp_replicate=2");
  SET_SAYS(("--set train.leaves", "shard.zero", "2", "0", "1"), GOOD, "train.leaves=4", "shard.zero=2");
  SET_SAYS(("--set train.leaves", "shard", "train.sync", "none"), GOOD, "train.leaves=4", "train.microbatches=2",
           "train.sync=[shard, all]");
  SET_SAYS(("--set train.leaves", "all", "train.sync", "none"), GOOD, "train.leaves=4", "train.microbatches=3",
           "train.sync=[none, all, all]");
  SET_SAYS(("--set train.leaves", "schedule.stages", "2", "0"), GOOD, "train.leaves=4", "schedule.stages=2");
}

static void a_number_of_leaves_that_ranks_sum_in_another_order_is_refused(void **state) {
  SET_SAYS(("--set train.leaves", "16", "dp_replicate=3 dp_shard=1", "13", "24"), GOOD, "train.leaves=16",
           "mesh=dp_replicate=3");
  SET_SAYS(("--set train.leaves", "3", "dp_replicate=2 dp_shard=1", "2", "4"), GOOD, "train.leaves=3");
  SET_SAYS(("--set train.leaves", "dp_replicate=1 dp_shard=6"), GOOD, "train.leaves=12", "mesh=dp_shard=6");
}

/* In 3x5 all positions sum as the tree over leaves does, but the shards of a replica, to which ZeRO 1 reduces first, do
 * not. In 2x3 it is the other way round. */
static void sums_over_positions_and_over_shards_must_both_follow(void **state) {
  SET_SAYS(("--set train.leaves", "dp_replicate=3 dp_shard=5"), GOOD, "train.leaves=15",
           "mesh=dp_replicate=3 dp_shard=5");
  SET_SAYS(("--set train.leaves", "dp_replicate=2 dp_shard=3"), GOOD, "train.leaves=8",
           "mesh=dp_replicate=2 dp_shard=3");
}

static void fewer_leaves_than_ranks_are_refused(void **state) {
  SET_SAYS(("--set train.leaves", "2", "1"), GOOD, "train.leaves=1");
  SET_SAYS(("--set train.leaves", "7", "5"), GOOD, "train.leaves=5", "mesh=dp_shard=7");
  SET_SAYS(("--set train.leaves", "dp_replicate=1 dp_shard=6"), GOOD, "train.leaves=4",
           "mesh=dp_shard=6"); /* six would not do either */
}

/* The numbers that train/docs/leaves.md says fit. */
static int is_on_the_page(int64_t replicas, int64_t shards, int64_t leaves) {
  int64_t ranks = replicas * shards;
  int is_power = !(ranks & (ranks - 1)), is_one_less = !(ranks & (ranks + 1)) && (replicas == 1 || shards == 1);
  for (int64_t fits = ranks; fits <= leaves; fits *= 2)
    if ((leaves == fits && (is_power || is_one_less)) || (leaves == fits + 1 && is_one_less)) return 1;
  return ranks == 1;
}

/* What is not refused is summed in the order of the leaves' tree: each rank's leaves are a node, and so are those of
 * the shards of each replica. The page has these numbers. */
static void a_number_that_is_taken_has_a_node_for_each_rank(void **state) {
  static const int sizes[][2] = {{1, 1}, {2, 1}, {1, 3}, {2, 2}, {4, 1}, {1, 7},
                                 {2, 4}, {3, 2}, {5, 1}, {2, 3}, {3, 5}, {1, 15}};
  int taken = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (int64_t leaves = 1; leaves < 40; leaves++) {
      int replicas = sizes[i][0], shards = sizes[i][1], good = leaves >= replicas * shards;
      char mesh[64], number[32];
      ad_recipe *r = NULL;
      for (int64_t k = 0; good && k < replicas; k++) {
        ad_span own = ad_cut(leaves, k, replicas);
        ad_node nodes[AD_NODES_MAX];
        good &= ad_nodes_of(own.first, own.count, leaves, nodes) == 1;
        for (int64_t s = 0; s < shards; s++) {
          ad_span part = ad_cut(own.count, s, shards);
          good &= ad_nodes_of(own.first + part.first, part.count, leaves, nodes) == 1;
        }
      }
      snprintf(mesh, sizeof mesh, "mesh=dp_replicate=%d dp_shard=%d", replicas, shards);
      snprintf(number, sizeof number, "train.leaves=%lld", (long long)leaves);
      const char *sets[] = {mesh, number};
      ad_status status = ad_recipe_parse(GOOD, "r.yaml", sets, 2, &r);
      if (!status) assert_true(good);
      if (is_on_the_page(replicas, shards, leaves) != (status == AD_OK))
        fail_msg("%s %s: %s", mesh, number, ad_last_error());
      taken += !status;
      ad_recipe_destroy(r);
    }
  }
  assert_true(taken > 60);
}

static void sums_that_are_rounded_between_ranks_are_refused(void **state) {
  SET_SAYS(("--set train.leaves", "embedding.weight", "precision.reduce", "bf16", "precision.accumulate", "f32"), GOOD,
           "train.leaves=8", "precision.param=bf16");
  SET_SAYS(("--set train.leaves", "final.norm.weight", "precision.reduce", "f32", "precision.accumulate", "f64"), GOOD,
           "train.leaves=8", "precision.overrides={\"final*\": {reduce: f32, accumulate: f64}}");
  ad_recipe_destroy(READ(GOOD, "precision.param=bf16", "precision.reduce=f32"));
}

/* ---- kinds of programs ---- */

static ad_status refuse(const void *options, ad_program *to, void **own) {
  return ad_program_add_module(to, &(ad_module_spec){.size = 1});
}
static ad_status read_nothing(void *own, int64_t step, ad_data_split validation, int64_t *const *counted) {
  return AD_OK;
}
static double no_margin(const void *own) { return 0; }
static ad_status no_decisions(void *own, ad_deciding deciding, int32_t **out, size_t *count) { return AD_OK; }
static const double *no_numbers(const void *own, size_t index, const char **name, size_t *count) { return NULL; }
static ad_status show_nothing(void *own, const ad_forward *forward, char **out) { return AD_OK; }
static ad_status do_nothing(void *own, ad_step_outcome outcome) { return AD_OK; }

static void programs_that_need_all_microbatches_are_refused(void **state) {
  static ad_program_kind kinds[] = {
      {.name = "that_chooses", .choices = {.margin = no_margin, .decisions = no_decisions}},
      {.name = "that_measures", .account = {.measured = no_numbers}},
      {.name = "that_shows", .account = {.show = show_nothing}},
      {.name = "that_changes", .course = {.after_step = do_nothing}}};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char text[256];
    ad_recipe *r = NULL;
    kinds[i].size = sizeof kinds[i];
    kinds[i].create = refuse;
    kinds[i].read = read_nothing;
    kinds[i].options_size = 1;
    if (ad_program_register(&kinds[i])) fail_msg("%s", ad_last_error());
    snprintf(text, sizeof text,
             "name: r\nmodel: {kind: %s}\nmesh: \"dp_replicate=2\"\n"
             "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n",
             kinds[i].name);
    assert_int_equal(ad_recipe_parse(text, "r.yaml", NULL, 0, &r), AD_INVALID);
    assert_says_in(kinds[i].name, ad_last_error(), SAYS_FACTS("r.yaml:4: train.leaves", "model.kind", kinds[i].name));
  }
}

static void programs_of_several_modules_are_refused(void **state) {
  ad_recipe *r = NULL;
  assert_int_equal(ad_recipe_parse("name: r\nmodel: {kind: ocr}\nmesh: {encoder: dp=2, model: dp=2}\n"
                                   "train: {global_batch: 8, steps: 10, lr: 1e-3, leaves: 8}\n",
                                   "r.yaml", NULL, 0, &r),
                   AD_INVALID);
  assert_facts(ad_last_error(), "r.yaml:4: train.leaves", "model.kind ocr", "2");
}

static void a_failing_allocation_leaves_nothing_behind(void **state) {
  const char *sets[] = {"mesh=dp_replicate=2 tp=2"};
  assert_true(fails_with_each_allocation(GOOD, sets, 1, AD_OK) > 50);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(without_leaves_a_round_is_a_microbatch),
      cmocka_unit_test(a_microbatch_has_as_many_rounds_as_its_leaves_need),
      cmocka_unit_test(each_leaf_is_on_one_position),
      cmocka_unit_test(alone_one_rank_has_all_leaves),
      cmocka_unit_test(the_program_has_a_microbatch_for_each_leaf),
      cmocka_unit_test(keys_that_do_not_go_with_leaves_are_refused),
      cmocka_unit_test(a_number_of_leaves_that_ranks_sum_in_another_order_is_refused),
      cmocka_unit_test(sums_over_positions_and_over_shards_must_both_follow),
      cmocka_unit_test(fewer_leaves_than_ranks_are_refused),
      cmocka_unit_test(a_number_that_is_taken_has_a_node_for_each_rank),
      cmocka_unit_test(sums_that_are_rounded_between_ranks_are_refused),
      cmocka_unit_test(programs_that_need_all_microbatches_are_refused),
      cmocka_unit_test(programs_of_several_modules_are_refused),
      cmocka_unit_test(a_failing_allocation_leaves_nothing_behind),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
