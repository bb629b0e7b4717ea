/* A plan's bytes against those of the ranks it speaks of: one process that acts on engine dry, and real ranks after a
 * step. */
#include "ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "plan/plan.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

static ad_recipe *recipe_of(const char *mesh, const char *precision, const char *train) {
  char text[1024];
  snprintf(text, sizeof text,
           "name: small\nmodel: {kind: gpt, layers: 2, d_model: 16, heads: 2}\n"
           "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"%s\"\nprecision: {%s}\n"
           "train: {global_batch: 13, steps: 2, lr: 1e-2%s}\n",
           mesh, precision, train);
  ad_recipe *recipe = NULL;
  must(ad_recipe_parse(text, "small.yaml", NULL, 0, &recipe));
  return recipe;
}

static ad_plan_memory planned(const ad_recipe *recipe, int64_t rank, int64_t world) {
  ad_comm *comm;
  ad_run *run;
  ad_plan_memory memory;
  CHECK_OK(ad_plan_act(recipe, rank, &(ad_plan_world){world, world}, &comm, &run));
  CHECK_OK(ad_plan_memory_of(run, &memory));
  ad_run_destroy(run);
  ad_comm_close(comm);
  return memory;
}

static int holds_what_was_planned(ad_comm *comm, void *context) {
  const ad_recipe *recipe = context;
  ad_plan_memory plan = planned(recipe, ad_comm_rank(comm), ad_comm_size(comm));
  ad_run *run;
  ad_step_report report;
  CHECK_OK(ad_run_create(comm, recipe, NULL, &run));
  CHECK_OK(ad_run_step(run, 0, &report));
  CHECK_OK(ad_run_step(run, 1, &report));
  ad_plan_memory held;
  CHECK_OK(ad_plan_memory_of(run, &held));
  CHECK(held.params == plan.params && plan.params > 0);
  CHECK(held.buckets == plan.buckets);
  CHECK(held.grads == plan.grads);
  CHECK(held.checkpoint == plan.checkpoint);
  CHECK(held.optimizer == plan.optimizer);
  CHECK(held.activations == plan.activations);
  CHECK(held.runtime == plan.runtime);
  CHECK(ad_plan_peak(&held) == ad_plan_peak(&plan));
  ad_run_destroy(run);
  return 0;
}

static void ranks_hold_what_was_planned(void **state) {
  static const char *const meshes[] = {"dp_shard=1", "dp_replicate=3", "dp_replicate=2 dp_shard=3"};
  static const int64_t worlds[] = {1, 3, 6};
  static const char *const precisions[] = {"", "param: f64, compute: f32", "compute: f64"};
  static const char *const trains[] = {"", ", microbatches: 3", ", microbatches: 3, sync: [all, none, all]"};
  for (int m = 0; m < 3; m++)
    for (int i = 0; i < 3; i++) {
      ad_recipe *recipe = recipe_of(meshes[m], precisions[i], trains[(m + i) % 3]);
      run_ranks(worlds[m], holds_what_was_planned, recipe);
      ad_recipe_destroy(recipe);
    }
}

/* 16 rows over 3 ranks, 13 samples over 6. */
static void ranks_with_uneven_shards_hold_what_was_planned(void **state) {
  static const char *const levels[] = {"}\nshard: {zero: 1", ", microbatches: 2}\nshard: {zero: 2",
                                       ", microbatches: 2}\nshard: {zero: 3",
                                       "}\nshard: {zero: 3}\ncheckpoint: {every: 1"};
  for (int i = 0; i < 4; i++) {
    ad_recipe *recipe = recipe_of("dp_replicate=2 dp_shard=3", i % 2 ? "param: bf16, reduce: f32" : "", levels[i]);
    run_ranks(6, holds_what_was_planned, recipe);
    ad_recipe_destroy(recipe);
  }
}

static void a_copy_in_the_dtype_of_computation_is_counted(void **state) {
  ad_recipe *same = recipe_of("dp_shard=2", "", ""), *wide = recipe_of("dp_shard=2", "param: f64, compute: f32", "");
  ad_plan_memory own = planned(same, 0, 2), copied = planned(wide, 0, 2);
  assert_int_equal(copied.params, 2 * own.params);
  assert_true(own.gathered == 0 && copied.gathered > 0);
  ad_recipe_destroy(same);
  ad_recipe_destroy(wide);
}

static size_t peak_of(const json_t *entry) { return (size_t)json_integer_value(json_object_get(entry, "peak")); }

static json_t *plan_on_nodes(const char *mesh, int64_t ranks_per_node) {
  ad_plan_options options = {sizeof options, ranks_per_node};
  ad_recipe *recipe = recipe_of(mesh, "param: f64, compute: f32", "");
  json_t *plan;
  must(ad_plan_document(recipe, &options, &plan));
  ad_recipe_destroy(recipe);
  return plan;
}

static void a_node_holds_what_its_ranks_hold(void **state) {
  json_t *plan = plan_on_nodes("dp_shard=5", 2);
  const json_t *nodes = json_object_get(plan, "memory_per_node"), *ranks = json_object_get(plan, "memory_per_rank");
  assert_int_equal(json_array_size(nodes), 3);
  size_t sums[3] = {0}, i;
  const json_t *rank;
  json_array_foreach(ranks, i, rank) {
    assert_int_equal(json_integer_value(json_object_get(rank, "node")), i / 2);
    sums[i / 2] += peak_of(rank);
  }
  for (i = 0; i < 3; i++) assert_int_equal(peak_of(json_array_get(nodes, i)), sums[i]);
  json_decref(plan);
}

static void ranks_of_different_nodes_share_no_copy(void **state) {
  json_t *one = plan_on_nodes("dp_shard=4", 0), *two = plan_on_nodes("dp_shard=4", 2);
  const json_t *shared = json_array_get(json_object_get(one, "memory_per_rank"), 0);
  const json_t *own = json_array_get(json_object_get(two, "memory_per_rank"), 0);
  json_int_t a_fourth = json_integer_value(json_object_get(shared, "gathered"));
  assert_true(a_fourth > 0);
  assert_true(json_integer_value(json_object_get(own, "gathered")) >= 4 * a_fourth - 64);
  json_decref(one);
  json_decref(two);
}

static void expect_when(const char *train, const char *when, int times) {
  ad_recipe *recipe = recipe_of("dp_shard=2", "", train);
  json_t *plan;
  must(ad_plan_document(recipe, NULL, &plan));
  const json_t *collective = json_array_get(json_object_get(plan, "collectives"), 0);
  const json_t *step = json_array_get(json_object_get(json_array_get(json_object_get(plan, "params"), 0), "path"), 0);
  assert_string_equal(json_string_value(json_object_get(collective, "when")), when);
  assert_string_equal(json_string_value(json_object_get(step, "when")), when);
  assert_int_equal(json_integer_value(json_object_get(collective, "times")), times);
  json_decref(plan);
  ad_recipe_destroy(recipe);
}

static void when_a_reduction_happens_follows_from_the_schedule(void **state) {
  expect_when("", "last_microbatch", 1);
  expect_when(", microbatches: 2", "last_microbatch", 1);
  expect_when(", microbatches: 2, sync: [none, all]", "last_microbatch", 1);
  expect_when(", microbatches: 2, sync: [all, all]", "every_microbatch", 2);
  expect_when(", microbatches: 3, sync: [all, none, all]", "last_microbatch", 2);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ranks_hold_what_was_planned),
      cmocka_unit_test(ranks_with_uneven_shards_hold_what_was_planned),
      cmocka_unit_test(a_copy_in_the_dtype_of_computation_is_counted),
      cmocka_unit_test(a_node_holds_what_its_ranks_hold),
      cmocka_unit_test(ranks_of_different_nodes_share_no_copy),
      cmocka_unit_test(when_a_reduction_happens_follows_from_the_schedule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
