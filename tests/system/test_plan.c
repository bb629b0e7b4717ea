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
  CHECK_OK(ad_plan_act(recipe, rank, world, &comm, &run));
  ad_plan_memory memory = ad_plan_memory_of(run);
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
  ad_plan_memory held = ad_plan_memory_of(run);
  CHECK(held.params == plan.params && plan.params > 0);
  CHECK(held.buckets == plan.buckets);
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

static void a_copy_in_the_dtype_of_computation_is_counted(void **state) {
  ad_recipe *same = recipe_of("dp_shard=2", "", ""), *wide = recipe_of("dp_shard=2", "param: f64, compute: f32", "");
  ad_plan_memory own = planned(same, 0, 2), copied = planned(wide, 0, 2);
  assert_int_equal(copied.params, 2 * own.params);
  assert_true(own.gathered == 0 && copied.gathered > 0);
  ad_recipe_destroy(same);
  ad_recipe_destroy(wide);
}

static void expect_when(const char *train, const char *when, int times) {
  ad_recipe *recipe = recipe_of("dp_shard=2", "", train);
  json_t *plan;
  must(ad_plan_document(recipe, &plan));
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
      cmocka_unit_test(a_copy_in_the_dtype_of_computation_is_counted),
      cmocka_unit_test(when_a_reduction_happens_follows_from_the_schedule),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
