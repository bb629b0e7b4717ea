/* Tests the comparison of a step's collectives with its plan: what counts as a difference, and that a check with a
 * difference fails even if every gradient is right. */
#include "alone.h"

#include "base/injection.h"
#include "check/checker.h"
#include "mesh/group.h"
#include "says.h"

static ad_calls_kind kind(ad_collective_op op, ad_dtype dtype, ad_axes axes, int64_t times, uint64_t bytes) {
  ad_calls_kind made = {.op = op, .dtype = dtype, .axes = axes, .times = times, .bytes = bytes};
  made.shape = (ad_group_shape){.count = 1, .size = {3}, .stride = {1}};
  return made;
}

static int equal(const ad_calls_kind *made, size_t made_count, const ad_calls_kind *planned, size_t planned_count,
                 const char *words) {
  char text[AD_CALLS_TEXT] = "";
  ad_calls a = {.kinds = (ad_calls_kind *)(uintptr_t)made, .count = made_count};
  ad_calls b = {.kinds = (ad_calls_kind *)(uintptr_t)planned, .count = planned_count};
  int same = ad_calls_equal(&a, &b, text, sizeof text);
  if (words && strcmp(text, words) != 0) fail_msg("\"%s\"", text);
  return same;
}

static void every_number_of_a_kind_counts(void **state) {
  ad_axes tp = AD_AXES(AD_TP), dp = AD_AXES(AD_DP_SHARD);
  ad_calls_kind sums = kind(AD_ALL_REDUCE, AD_F32, tp, 3, 96), rows = kind(AD_EXCHANGE, AD_F32, dp, 2, 40);
  ad_calls_kind both[] = {sums, rows}, reversed[] = {rows, sums};
  assert_true(equal(both, 2, reversed, 2, ""));
  ad_calls_kind more = kind(AD_ALL_REDUCE, AD_F32, tp, 4, 96), wide = kind(AD_ALL_REDUCE, AD_F32, tp, 3, 97);
  assert_false(equal(&more, 1, &sums, 1,
                     "all_reduce of f32 over tp: 4 calls with 96 bytes, but the plan has 3 calls with 96 bytes"));
  assert_false(equal(&wide, 1, &sums, 1,
                     "all_reduce of f32 over tp: 3 calls with 97 bytes, but the plan has 3 calls with 96 bytes"));
  ad_calls_kind narrow = kind(AD_ALL_REDUCE, AD_BF16, tp, 3, 96), other = kind(AD_ALL_REDUCE, AD_F32, dp, 3, 96);
  assert_false(equal(&narrow, 1, &sums, 1,
                     "all_reduce of bf16 over tp: 3 calls with 96 bytes, but the plan has 0 calls with 0 bytes"));
  assert_false(equal(&other, 1, &sums, 1, NULL));
  ad_calls_kind scattered = kind(AD_REDUCE_SCATTER, AD_F32, tp, 3, 96), sheared = sums;
  sheared.shape.stride[0] = 2;
  assert_false(equal(&scattered, 1, &sums, 1, NULL) || equal(&sheared, 1, &sums, 1, NULL));
  assert_false(equal(&sums, 1, both, 2,
                     "exchange of f32 over dp_shard: 0 calls with 0 bytes, but the plan has 2 calls with 40 bytes"));
  ad_calls_kind one_more[] = {sums, other};
  assert_false(equal(one_more, 2, &sums, 1,
                     "all_reduce of f32 over dp_shard: 3 calls with 96 bytes, but the plan has 0 calls with 0 bytes"));
  ad_calls_kind routed = kind(AD_EXCHANGE, AD_F32, dp, 2, 8), fewer = kind(AD_EXCHANGE, AD_F32, dp, 1, 40);
  assert_true(equal(&routed, 1, &rows, 1, "")); /* an exchange's bytes depend on the router and may differ */
  assert_false(equal(&fewer, 1, &rows, 1, NULL));
  ad_calls_kind ring = kind(AD_EXCHANGE, AD_F32, tp, 4, 64), and_rows[] = {rows, ring};
  assert_true(equal(and_rows, 2, &rows, 1, "")); /* a ring exchange, which the plan does not count */
  assert_false(equal(&ring, 1, &rows, 1, NULL));
}

/* ---- checks with one more collective than planned ---- */

typedef struct extra {
  ad_comm *comm;
  ad_mesh *mesh;
} extra;

/* Posts an all-reduce of a value that the step does not use. */
static void sum_once_more(void *context, void *passing) {
  const extra *e = context;
  double unused = 1;
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = &unused, .out = &unused, .count = 1, .dtype = AD_F64};
  call.group = ad_mesh_group(e->mesh, AD_AXES(AD_DP_REPLICATE), ad_comm_rank(e->comm));
  call.site = AD_HERE;
  if (ad_comm_rank(e->comm) >= 0 && ad_comm_run(e->comm, &call)) abort();
}

static int check(ad_comm *comm, void *context) {
  const ad_check_job *job = context;
  extra e = {.comm = comm};
  if (ad_mesh_create("dp_replicate=3", &e.mesh)) return 1;
  ad_injection_set(AD_INJECT_NORM, (ad_injection){sum_once_more, &e});
  ad_status status = ad_check_rank(comm, job);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  ad_mesh_destroy(e.mesh);
  return status != AD_OK;
}

static void a_right_gradient_by_one_collective_more_does_not_match(void **state) {
  ad_recipe *recipe = small_recipe("dp_replicate=3", UNEQUAL, ", microbatches: 2");
  ad_check_options options = {.size = sizeof options, .steps = 1};
  ad_check_result *result;
  ad_launch_result launched = {.size = sizeof launched};
  must(ad_check_result_create(recipe, &result));
  ad_check_job job = {.recipe = recipe, .options = &options, .steps = 1, .result = result};
  must(ad_check_run(&job, &launched));
  assert_true(ad_check_result_passes(result, 0) && !result->calls[0] && result->call_count > 2);
  int64_t count = result->call_count;
  uint64_t bytes = result->call_bytes;
  ad_launch_options launch = {.size = sizeof launch, .ranks = 3, .function = check, .context = &job};
  result->complete = 0;
  must(ad_launch(&launch, &launched));
  assert_false(ad_check_result_passes(result, 0));
  for (size_t i = 0; i < result->param_count; i++) assert_true(ad_param_share(&result->params[i]) <= 1);
  assert_text_says(result->calls, "rank 0", "all_reduce", "f64", "dp_replicate");
  assert_int_equal(result->call_count, count + 1);
  assert_int_equal(result->call_bytes, bytes + 16);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

/* Overflowing steps are skipped and post fewer collectives: those of the first step that counts are compared. */
static void the_calls_of_a_step_that_counts_are_compared(void **state) {
  enum { STEPS = 12 };
  ad_recipe *recipe = NULL;
  ad_check_options options = {.size = sizeof options, .steps = STEPS, .recipe_dtype = 1};
  ad_check_result *result;
  ad_launch_result launched = {.size = sizeof launched};
  must(
      ad_recipe_parse("name: halves\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 12}\nmesh: \"dp_shard=2\"\n"
                      "precision: {param: f16, reduce: f16, loss_scale: 24}\nshard: {zero: 2}\n"
                      "train: {global_batch: 12, steps: 20, lr: 1e-3, clip: 0.5}\n",
                      "halves.yaml", NULL, 0, &recipe));
  must(ad_check_result_create(recipe, &result));
  ad_check_job job = {.recipe = recipe, .options = &options, .steps = STEPS, .result = result};
  must(ad_check_run(&job, &launched));
  assert_in_range(result->overflow.skipped, 1, STEPS - 1);
  assert_string_equal(result->calls, "");
  assert_true(ad_check_result_passes(result, 0) && result->call_count > 0);
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

/* ---- a gradient in a bucket of too wide a dtype ---- */

static void a_bucket_by_the_wide_gradient_breaks_policy_and_plan(void **state) {
  ad_recipe *recipe = NULL;
  ad_check_result *result;
  must(
      ad_recipe_parse("name: narrow\nmodel: {kind: gpt, layers: 1, d_model: 16, heads: 2}\n"
                      "data: {text: [/usr/share/common-licenses], seq: 12" UNEQUAL "}\nmesh: \"dp_shard=3\"\n"
                      "precision: {param: bf16, compute: bf16, reduce: bf16, overrides: {\"*norm*\": {param: f32}}}\n"
                      "shard: {zero: 3, bucket_mib: 0.01}\n"
                      "train: {seed: 4, global_batch: 12, microbatches: 2, steps: 5, lr: 1e-2}\n",
                      "narrow.yaml", NULL, 0, &recipe));
  must(ad_check_result_create(recipe, &result));
  ad_mutant wide = try_alone(recipe, "bucket-by-wide-gradient", "", result);
  if (wide.killed_by != AD_KILLED_BY_PLAN) fail_msg("%s: %s", ad_killed_by_name(wide.killed_by), wide.message);
  assert_text_says(wide.message, "f32", "bf16");
  assert_text_says(wide.message, "reduce_scatter", "dp_shard",
                   "f32"); /* how often and how many bytes, and as planned */
  ad_check_result_destroy(result);
  ad_recipe_destroy(recipe);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_number_of_a_kind_counts),
      cmocka_unit_test(a_right_gradient_by_one_collective_more_does_not_match),
      cmocka_unit_test(the_calls_of_a_step_that_counts_are_compared),
      cmocka_unit_test(a_bucket_by_the_wide_gradient_breaks_policy_and_plan),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
