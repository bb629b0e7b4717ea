/* Tests what plans say of train.leaves: how many sums of leaves a rank holds and submits, what would need less, and
 * which numbers of leaves leave no rank idle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/train.h"
#include "files/json.h"
#include "plan/plan.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

static ad_recipe *recipe_with(const char *const *sets, size_t count) {
  ad_recipe *recipe = NULL;
  must(
      ad_recipe_parse("name: small\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp=1\"\n"
                      "train: {global_batch: 32, steps: 2, lr: 1e-2}\n",
                      "small.yaml", sets, count, &recipe));
  return recipe;
}

/* The plan of the small recipe with these --set. */
static json_t *plan_with(const char *const *sets, size_t count) {
  json_t *plan;
  ad_recipe *recipe = recipe_with(sets, count);
  must(ad_plan_document(recipe, NULL, &plan));
  ad_recipe_destroy(recipe);
  return plan;
}
#define SETS(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)
#define PLAN_WITH(...) plan_with(SETS(__VA_ARGS__))

/* The bytes of all gradients in f32. */
static long long gradient_bytes(const json_t *plan) {
  const json_t *param;
  long long bytes = 0;
  size_t i;
  json_array_foreach(json_object_get(plan, "params"), i, param) bytes += 4 * ad_integer_of(param, "numel");
  return bytes;
}

static const json_t *of_leaves(const json_t *plan, const char *key) {
  const json_t *found = json_object_get(json_object_get(plan, "leaves"), key);
  assert_non_null(found);
  return found;
}

/* A rank holds this many sums of full gradients. */
static void holds(const json_t *plan, long long sums) {
  const json_t *held = of_leaves(plan, "held");
  assert_int_equal(ad_integer_of(held, "sums"), sums);
  assert_int_equal(ad_integer_of(held, "bytes"), sums * gradient_bytes(plan));
}

/* All gradients are reduced in one way. */
static void reduces(const json_t *plan, const char *op, const char *axes, long long most, long long all) {
  const json_t *list = of_leaves(plan, "reductions"), *first = json_array_get(list, 0);
  assert_int_equal(json_array_size(list), 1);
  assert_string_equal(ad_text_of(first, "op"), op);
  assert_string_equal(ad_text_of(first, "axes"), axes);
  assert_int_equal(ad_integer_of(first, "sums_most"), most);
  assert_int_equal(ad_integer_of(first, "sums_all"), all);
  assert_int_equal(ad_integer_of(first, "bytes"), most * gradient_bytes(plan));
}

static void no_rank_is_idle_with(const json_t *plan, const char *numbers) {
  char *text = json_dumps(of_leaves(plan, "no_rank_idle"), JSON_COMPACT);
  assert_string_equal(text, numbers);
  free(text);
}

static void sums_that_are_held_and_handed_in_are_counted(void **state) {
  json_t *one = PLAN_WITH("mesh=dp=1", "train.leaves=8");
  holds(one, 4); /* [0, 4), [4, 6), [6, 7) and the leaf that forms */
  assert_int_equal(json_array_size(of_leaves(one, "reductions")), 0);
  no_rank_is_idle_with(one, "[]");
  json_decref(one);

  json_t *four = PLAN_WITH("mesh=dp_replicate=2 dp_shard=2", "train.leaves=16");
  holds(four, 3);
  reduces(four, "all_reduce", "dp_replicate,dp_shard", 1, 4);
  assert_int_equal(ad_integer_of(json_object_get(four, "leaves"), "rounds"), 4);
  json_decref(four);

  /* [0, 3), [3, 6), [6, 9), [9, 12) and [12, 16): two nodes each, but for the last, which is one */
  json_t *five = PLAN_WITH("mesh=dp_replicate=5 dp_shard=1", "train.leaves=16");
  holds(five, 3);
  reduces(five, "all_reduce", "dp_replicate", 2, 9);
  json_decref(five);
}

/* The bytes of the sums are those of the rank that holds most. */
static void ranks_differ_in_what_they_hold(void **state) {
  json_t *plan = PLAN_WITH("mesh=dp_replicate=5 dp_shard=1", "train.leaves=16");
  const json_t *ranks = json_object_get(plan, "memory_per_rank");
  static const long long sums[] = {2, 3, 2, 3, 3};
  for (size_t i = 0; i < 5; i++) assert_int_equal(ad_integer_of(json_array_get(ranks, i), "leaf_sums"), sums[i]);
  assert_int_equal(ad_integer_of(of_leaves(plan, "held"), "rank"), 1);
  json_decref(plan);
}

static void numbers_of_leaves_that_leave_no_rank_idle_are_listed(void **state) {
  json_t *five = PLAN_WITH("mesh=dp_replicate=5 dp_shard=1", "train.leaves=16");
  assert_int_equal(ad_integer_of(json_object_get(five, "leaves"), "rounds"), 4);
  assert_true(json_number_value(of_leaves(five, "rounds_if_even")) == 16.0 / 5);
  no_rank_is_idle_with(five, "[15,20]");
  json_decref(five);
  json_t *halves = PLAN_WITH("mesh=dp_replicate=5 dp_shard=1", "train.leaves=15", "train.microbatches=2");
  no_rank_is_idle_with(halves, "[10,20]");
  json_decref(halves);
  json_t *scattered = PLAN_WITH("mesh=dp_shard=5", "train.leaves=16", "shard.zero=2");
  no_rank_is_idle_with(scattered, "[15,20]");
  json_decref(scattered);
  json_t *most = PLAN_WITH("mesh=dp_replicate=5 dp_shard=1", "train.leaves=1024");
  no_rank_is_idle_with(most, "[1020]");
  json_decref(most);
}

/* What the advice promises is what a plan of that recipe has. */
static void with_zero2_a_rank_would_hold_shards(void **state) {
  json_t *plan = PLAN_WITH("mesh=dp_shard=4", "train.leaves=16", "shard.zero=1");
  json_t *second = PLAN_WITH("mesh=dp_shard=4", "train.leaves=16", "shard.zero=2");
  const json_t *advice = of_leaves(plan, "with_zero2"), *held = of_leaves(second, "held");
  assert_true(json_equal((json_t *)(uintptr_t)advice, (json_t *)(uintptr_t)held));
  holds(plan, 3);
  holds(second, 1);
  assert_int_equal(ad_integer_of(held, "shards"), 2);
  assert_int_equal(4 * ad_integer_of(held, "shard_bytes"), 2 * gradient_bytes(second));
  assert_null(json_object_get(json_object_get(second, "leaves"), "with_zero2"));
  json_decref(plan);
  json_decref(second);
  json_t *whole = PLAN_WITH("mesh=dp_replicate=4 dp_shard=1", "train.leaves=16", "shard.zero=1");
  assert_null(json_object_get(json_object_get(whole, "leaves"), "with_zero2"));
  json_decref(whole);
}

/* Biases and norms under tp are open through the whole backward pass, so that one slot, which ZeRO 1 does not use, is too
 * few. */
static void where_zero2_is_refused_the_plan_says_nothing_of_it(void **state) {
  static const char model[] =
      "model={kind: gpt, layers: 1, d_model: 16, heads: 4, kv_heads: 2, tied: false, bias: true, qk_norm: true, "
      "sequence_parallel: true}";
  const char *const sets[] = {"mesh=dp_shard=3 cp=2 tp=2",
                              model,
                              "shard.bucket_mib=0.000001",
                              "shard.window=1",
                              "train.leaves=6",
                              "shard.zero=2"};
  json_t *plan;
  ad_recipe *recipe = recipe_with(sets, 6);
  assert_int_equal(ad_plan_document(recipe, NULL, &plan), AD_INVALID);
  assert_facts(ad_last_error(), "shard.window", "1");
  ad_recipe_destroy(recipe);
  plan = PLAN_WITH(sets[0], sets[1], sets[2], sets[3], sets[4], "shard.zero=1");
  assert_null(json_object_get(json_object_get(plan, "leaves"), "with_zero2"));
  json_decref(plan);
}

/* With one microbatch a rank sums its four leaves before it sends them, so that its buckets share no memory. */
static void whole_gradients_are_held_where_a_microbatch_has_several_leaves(void **state) {
  json_t *plan = PLAN_WITH("mesh=dp_shard=4", "train.leaves=16", "shard.zero=2", "train.microbatches=1");
  holds(plan, 3);
  reduces(plan, "reduce_scatter", "dp_shard", 1, 4);
  const json_t *row = json_array_get(json_object_get(plan, "gradient_memory"), 0);
  assert_text_says(ad_text_of(row, "full_because"), NULL);
  json_decref(plan);
}

/* A comparison has the bytes of all sums that a rank submits. */
static void several_sums_are_more_bytes_in_a_comparison(void **state) {
  static const char *const values[] = {"5", "16"};
  ad_recipe *recipes[] = {recipe_with(SETS("mesh=dp_replicate=5 dp_shard=1", "train.leaves=5")),
                          recipe_with(SETS("mesh=dp_replicate=5 dp_shard=1", "train.leaves=16"))};
  ad_plan_comparison of = {.size = sizeof of,
                           .recipes = (const ad_recipe *const *)recipes,
                           .key = "train.leaves",
                           .values = values,
                           .count = 2};
  char *text;
  must(ad_plan_compare_json(&of, &text));
  json_t *compared = json_loads(text, 0, NULL);
  long long bytes[2];
  for (size_t i = 0; i < 2; i++) {
    const json_t *entry = json_array_get(json_object_get(compared, "plans"), i);
    bytes[i] = ad_integer_of(json_array_get(json_object_get(entry, "moved"), 0), "bytes");
    ad_recipe_destroy(recipes[i]);
  }
  assert_int_equal(bytes[1], 2 * bytes[0]);
  json_decref(compared);
  free(text);
}

static void the_table_says_it(void **state) {
  char *table;
  ad_recipe *recipe = recipe_with(SETS("mesh=dp_shard=5", "train.leaves=16", "shard.zero=1"));
  must(ad_plan_table(recipe, NULL, &table));
  assert_text_says(table, "reduce_scatter", "dp_shard", "2", "9");
  assert_text_says(table, "shard.zero=2", "1", "2");
  assert_text_says(table, "16", "5", "4", "3.2", "15", "20");
  free(table);
  ad_recipe_destroy(recipe);
}

static void without_leaves_nothing_is_said_of_them(void **state) {
  json_t *plan = PLAN_WITH("mesh=dp_shard=4", "train.microbatches=4");
  assert_null(json_object_get(plan, "leaves"));
  assert_null(json_object_get(json_array_get(json_object_get(plan, "memory_per_rank"), 0), "leaf_sums"));
  json_decref(plan);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sums_that_are_held_and_handed_in_are_counted),
      cmocka_unit_test(ranks_differ_in_what_they_hold),
      cmocka_unit_test(numbers_of_leaves_that_leave_no_rank_idle_are_listed),
      cmocka_unit_test(with_zero2_a_rank_would_hold_shards),
      cmocka_unit_test(where_zero2_is_refused_the_plan_says_nothing_of_it),
      cmocka_unit_test(whole_gradients_are_held_where_a_microbatch_has_several_leaves),
      cmocka_unit_test(several_sums_are_more_bytes_in_a_comparison),
      cmocka_unit_test(the_table_says_it),
      cmocka_unit_test(without_leaves_nothing_is_said_of_them),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
