/* Tests what a reducer refuses, plans and holds, on backend dry, where one process can act as any rank of any world. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "allocations.h"
#include "addend/reduce.h"
#include "base/memory.h"
#include "reduce/precision_policy.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "says.h"

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
} world;

static int open_world(void **state) {
  static world w;
  if (ad_mesh_create("dp_replicate=2 dp_shard=4 tp=2", &w.mesh) || ad_comm_open_dry(3, 16, &w.comm)) return -1;
  *state = &w;
  return 0;
}

static int close_world(void **state) {
  world *w = *state;
  ad_comm_close(w->comm);
  ad_mesh_destroy(w->mesh);
  return 0;
}

static ad_param_spec spec_of(const world *w, const char *name, int64_t numel, const char *layout, const char *storage) {
  ad_param_spec spec = {.size = sizeof spec, .name = name, .shape = {1, {numel}}};
  assert_int_equal(ad_layout_parse(w->mesh, layout, &spec.layout), AD_OK);
  assert_int_equal(ad_layout_parse(w->mesh, storage, &spec.storage), AD_OK);
  return spec;
}

static void is_refused(const world *w, const ad_param_spec *params, size_t count, ad_status status) {
  ad_reducer *reducer = NULL;
  assert_int_equal(ad_reducer_create(w->comm, params, count, NULL, &reducer), status);
  assert_null(reducer);
}
#define refused(world, params, count, status, ...) \
  (is_refused((world), (params), (count), (status)), assert_says(__VA_ARGS__))

static void what_a_reducer_cannot_do_is_refused_when_it_is_made(void **state) {
  const world *w = *state;
  ad_param_spec spec = spec_of(w, "w", 8, "dp=R tp=I", "dp=R tp=S0");
  refused(w, &spec, 1, AD_INVALID, NULL);
  spec = spec_of(w, "w", 8, "dp=R tp=R", "dp_replicate=R dp_shard=S1 tp=R");
  spec.shape = (ad_shape){2, {4, 2}};
  refused(w, &spec, 1, AD_INVALID, "S0");
  spec = spec_of(w, "w", 8, "dp=R tp=R", "dp_replicate=R dp_shard=S0 tp=R");
  spec.shape = (ad_shape){0, {0}};
  refused(w, &spec, 1, AD_INVALID, "w");
  spec = spec_of(w, "w", 8, "dp=R tp=S0", "dp=R tp=R");
  refused(w, &spec, 1, AD_TYPE, "w");
  spec = spec_of(w, "w", 8, "dp=R tp=R", "dp=R tp=R");
  spec.policy = (ad_precision_policy){.reduce = AD_F64, .accumulate = AD_F32};
  refused(w, &spec, 1, AD_INVALID, NULL);
  spec.policy = (ad_precision_policy){.param = AD_I32};
  refused(w, &spec, 1, AD_INVALID, "i32");
  spec.policy = (ad_precision_policy){0};
  spec.shape.dim[0] = -8;
  refused(w, &spec, 1, AD_INVALID, "w", "dimension 0", "size -8");
  spec.shape.dim[0] = 8;
  ad_param_spec twice[] = {spec, spec};
  refused(w, twice, 2, AD_INVALID, "0", "1", "w");
  ad_param_spec again[] = {spec, spec, spec, spec};
  again[0].name = again[2].name = "v";
  again[1].name = again[3].name = "a"; /* first by the alphabet, but its second one comes later */
  refused(w, again, 4, AD_INVALID, "0", "2", "v");
  spec.name = "";
  refused(w, &spec, 1, AD_INVALID, NULL);
}

static void a_policy_fills_what_is_left_out(void **state) {
  ad_precision_policy policy = {0};
  assert_int_equal(ad_precision_policy_complete(&policy), AD_OK);
  assert_true(policy.param == AD_F32 && policy.grad == AD_F32 && policy.reduce == AD_F32 &&
              policy.accumulate == AD_F32);
  policy = (ad_precision_policy){.param = AD_F64};
  assert_int_equal(ad_precision_policy_complete(&policy), AD_OK);
  assert_true(policy.reduce == AD_F64 && policy.accumulate == AD_F64);
  policy = (ad_precision_policy){.param = AD_BF16};
  assert_int_equal(ad_precision_policy_complete(&policy), AD_OK);
  assert_true(policy.grad == AD_BF16 && policy.reduce == AD_BF16 && policy.accumulate == AD_F32);
  policy = (ad_precision_policy){.param = AD_BF16, .reduce = AD_F16, .accumulate = AD_F64};
  assert_int_equal(ad_precision_policy_complete(&policy), AD_OK);
}

static void a_complete_policy_stays_as_it_is(void **state) {
  ad_precision_policy policies[] = {{0},
                                    {.param = AD_F64},
                                    {.grad = AD_F64, .raw = 1},
                                    {.reduce = AD_F32, .raw = 1},
                                    {.param = AD_BF16, .accumulate = AD_F64}};
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
    assert_int_equal(ad_precision_policy_complete(&policies[i]), AD_OK);
    ad_precision_policy once = policies[i];
    assert_int_equal(ad_precision_policy_complete(&policies[i]), AD_OK);
    assert_memory_equal(&once, &policies[i], sizeof once);
  }
  assert_true(policies[2].reduce == AD_F64 && policies[2].accumulate == AD_F64);
  assert_true(!policies[3].grad && policies[3].accumulate == AD_F32);
}

static void a_policy_that_means_nothing_is_refused(void **state) {
  ad_precision_policy policies[] = {
      {.reduce = AD_F64, .accumulate = AD_F32}, {.accumulate = AD_BF16}, {.param = AD_I64}, {.raw = 1}};
  for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
    ad_precision_policy before = policies[i];
    assert_int_equal(ad_precision_policy_complete(&policies[i]), AD_INVALID);
    assert_memory_equal(&before, &policies[i], sizeof before);
  }
}

static void a_policy_takes_no_dtype_of_collectives_alone(void **state) {
  for (ad_dtype dtype = AD_I32; dtype <= AD_BOOL; dtype++) {
    static const char *const fields[] = {"param", "grad", "reduce", "accumulate"};
    ad_precision_policy policies[] = {{.param = dtype}, {.grad = dtype}, {.reduce = dtype}, {.accumulate = dtype}};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
      assert_int_equal(ad_precision_policy_complete(&policies[i]), AD_INVALID);
      assert_says(fields[i], ad_dtype_name(dtype), i < 3 ? "bf16" : "f32", i < 3 ? "f16" : "f64");
    }
  }
}

static void buckets_fill_from_the_last_parameter_and_launch_in_that_order(void **state) {
  const world *w = *state;
  ad_param_spec params[] = {
      spec_of(w, "a", 100, "dp=R tp=R", "dp=R tp=R"), spec_of(w, "b", 100, "dp=R tp=S0", "dp=R tp=S0"),
      spec_of(w, "c", 100, "dp=R tp=R", "dp=R tp=R"), spec_of(w, "d", 100, "dp=R tp=I", "dp=R tp=I"),
      spec_of(w, "e", 100, "dp=V tp=V", "dp=V tp=V"), spec_of(w, "f", 100, "dp=R tp=R", "dp=R tp=R"),
  };
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = 800};
  ad_reducer *reducer;
  assert_int_equal(ad_reducer_create(w->comm, params, 6, &options, &reducer), AD_OK);
  assert_int_equal(ad_reducer_plan_count(reducer), 3);
  ad_axes dp_tp = AD_AXES_DP | AD_AXES(AD_TP);
  ad_reduction_plan plan = ad_reducer_plan(reducer, 0);
  assert_true(plan.param_count == 2 && plan.params[0] == 5 && plan.params[1] == 2 && plan.axes == dp_tp);
  assert_true(plan.bytes == 800 && plan.group_size == 16 && plan.move == AD_MOVE_ALL_REDUCE && plan.dtype == AD_F32);
  plan = ad_reducer_plan(reducer, 1);
  assert_true(plan.param_count == 2 && plan.params[0] == 3 && plan.params[1] == 1 && plan.axes == AD_AXES_DP);
  assert_true(plan.bytes == 600 && plan.group_size == 8);
  plan = ad_reducer_plan(reducer, 2);
  assert_true(plan.param_count == 1 && plan.params[0] == 0);
  assert_int_equal(ad_reducer_bytes(reducer), 4 * 550);
  ad_reducer_destroy(reducer);
}

/* Sums that wait for later microbatches in the accumulate dtype have memory beside that of the reduce dtype, if both
 * dtypes differ. */
static void sums_that_wait_are_counted_where_they_have_memory_of_their_own(void **state) {
  const world *w = *state;
  ad_reducer *reducer;
  ad_param_spec spec = spec_of(w, "w", 100, "dp=R tp=R", "dp=R tp=R");
  for (int narrow = 0; narrow <= 1; narrow++) {
    if (narrow) spec.policy = (ad_precision_policy){.param = AD_BF16};
    size_t sum = 400, comm_dtype = narrow ? 200 : 0, waits = narrow ? 400 : 0; /* in f32 all three are one array */
    assert_int_equal(ad_reducer_create(w->comm, &spec, 1, NULL, &reducer), AD_OK);
    assert_int_equal(ad_reducer_bytes(reducer), sum + comm_dtype);
    assert_int_equal(ad_reducer_begin_microbatch(reducer, AD_SYNC_NONE), AD_OK);
    assert_int_equal(ad_reducer_bytes(reducer), sum + comm_dtype + waits);
    assert_int_equal(ad_reducer_sum_bytes(reducer), narrow ? sum + waits : 0);
    ad_reducer_destroy(reducer);
  }
}

/* ---- calls in a wrong order ---- */

static void calls_out_of_order_are_refused_and_change_nothing(void **state) {
  const world *w = *state;
  ad_param_spec spec = spec_of(w, "w", 8, "dp=R tp=I", "dp=R tp=I");
  ad_reducer *r;
  int adds;
  assert_int_equal(ad_reducer_create(w->comm, &spec, 1, NULL, &r), AD_OK);
  ad_layout dual = ad_layout_dual(&spec.layout);
  ad_array grad = ad_array_describe(w->comm, AD_F32, &spec.shape, &dual), target, wrong;
  assert_int_equal(ad_reducer_add(r, 0, &grad), AD_INVALID);
  assert_int_equal(ad_reducer_end_microbatch(r), AD_INVALID);
  assert_int_equal(ad_reducer_finish(r), AD_INVALID);
  assert_int_equal(ad_reducer_begin_microbatch(r, AD_SYNC_NONE), AD_OK);
  assert_int_equal(ad_reducer_begin_microbatch(r, AD_SYNC_NONE), AD_INVALID);
  assert_int_equal(ad_reducer_add(r, 1, &grad), AD_INVALID);
  wrong = grad;
  wrong.layout = spec.layout;
  assert_int_equal(ad_reducer_add(r, 0, &wrong), AD_TYPE);
  assert_says("test_plan.c");
  assert_says("dp_replicate=P");
  wrong = grad;
  wrong.scale = 1;
  assert_int_equal(ad_reducer_add(r, 0, &wrong), AD_TYPE);
  wrong = grad;
  wrong.shape.dim[0] = 9;
  assert_int_equal(ad_reducer_add(r, 0, &wrong), AD_INVALID);
  assert_int_equal(ad_reducer_target(r, 0, &target, &adds), AD_OK);
  assert_int_equal(adds, 0);
  assert_true(ad_layout_equal(&target.layout, &dual));
  assert_int_equal(ad_reducer_add(r, 0, &grad), AD_OK);
  assert_int_equal(ad_reducer_add(r, 0, &grad), AD_INVALID);
  assert_int_equal(ad_reducer_target(r, 0, &target, &adds), AD_INVALID);
  assert_int_equal(ad_reducer_end_microbatch(r), AD_OK);
  assert_int_equal(ad_reducer_finish(r), AD_INVALID);
  assert_says("AD_SYNC_ALL");
  assert_int_equal(ad_reducer_begin_microbatch(r, AD_SYNC_ALL), AD_OK);
  assert_int_equal(ad_reducer_target(r, 0, &target, &adds), AD_OK);
  assert_int_equal(adds, 1);
  assert_int_equal(ad_reducer_add(r, 0, &grad), AD_OK);
  assert_int_equal(ad_reducer_end_microbatch(r), AD_OK);
  assert_int_equal(ad_reducer_finish(r), AD_OK);
  ad_reducer_destroy(r);
}

/* ---- events that a reducer traces ---- */

typedef struct events {
  int count, bucket[32];
  ad_bucket_event event[32];
  ad_bucket_step step[32];
} events;

static void record(void *context, ad_bucket_event event, const ad_bucket_step *step) {
  events *seen = context;
  seen->event[seen->count] = event;
  seen->step[seen->count] = *step;
  seen->bucket[seen->count++] = step->bucket;
}

static void buckets_are_posted_in_order_whatever_the_order_of_gradients(void **state) {
  const world *w = *state;
  ad_param_spec params[] = {spec_of(w, "a", 4, "dp=R tp=R", "dp=R tp=R"), spec_of(w, "b", 4, "dp=R tp=R", "dp=R tp=R"),
                            spec_of(w, "c", 4, "dp=R tp=R", "dp=R tp=R")};
  events seen = {0};
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = 1, .trace = record, .trace_context = &seen};
  ad_reducer *r;
  assert_int_equal(ad_reducer_create(w->comm, params, 3, &options, &r), AD_OK);
  assert_int_equal(ad_reducer_begin_microbatch(r, AD_SYNC_ALL), AD_OK);
  static const int arrivals[] = {1, 0, 2}, posted_after[] = {0, 0, 3};
  ad_layout dual = ad_layout_dual(&params[0].layout);
  ad_array grad = ad_array_describe(w->comm, AD_F32, &params[0].shape, &dual);
  for (int i = 0; i < 3; i++) {
    assert_int_equal(ad_reducer_add(r, (size_t)arrivals[i], &grad), AD_OK);
    assert_int_equal(seen.count, posted_after[i]);
  }
  assert_int_equal(ad_reducer_end_microbatch(r), AD_OK);
  assert_int_equal(ad_reducer_finish(r), AD_OK);
  assert_int_equal(seen.count, 9);
  for (int i = 0; i < 3; i++) assert_true(seen.event[i] == AD_BUCKET_POST && seen.bucket[i] == i);
  for (int i = 0; i < 3; i++)
    assert_true(seen.event[3 + 2 * i] == AD_BUCKET_WAIT && seen.event[4 + 2 * i] == AD_BUCKET_DONE);
  ad_reducer_destroy(r);
}

/* ---- allocations that fail ---- */

static ad_status run_a_step(const world *w) {
  ad_param_spec params[] = {spec_of(w, "a", 4, "dp=R tp=R", "dp=R tp=R"), spec_of(w, "b", 4, "dp=R tp=I", "dp=R tp=I")};
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = 1};
  ad_reducer *r;
  AD_TRY(ad_reducer_create(w->comm, params, 2, &options, &r));
  ad_status status = AD_OK;
  for (int i = 0; i < 2 && !status; i++) {
    status = ad_reducer_begin_microbatch(r, AD_SYNC_ALL);
    if (!status) status = ad_reducer_end_microbatch(r);
  }
  if (!status) status = ad_reducer_finish(r);
  ad_reducer_destroy(r);
  return status;
}

static void a_failed_allocation_leaves_nothing_behind(void **state) {
  const world *w = *state;
  ad_status status = AD_MEMORY;
  long n = 1;
  for (; status; n++) {
    ad_memory_fail_at(n);
    status = run_a_step(w);
    assert_true(reports_allocation(n, status));
    assert_true(n < 200);
  }
  assert_true(n > 6);
}

/* ---- law 4: the layout after all steps must be the storage layout ---- */

/* Runs a step with one bucket without step number `left_out` of its path (-1: with all steps). */
static ad_status step_without(const world *w, const ad_param_spec *params, size_t count, int left_out) {
  ad_reducer *reducer;
  ad_array grads[4];
  const ad_array *pointers[4];
  assert_int_equal(ad_reducer_create(w->comm, params, count, NULL, &reducer), AD_OK);
  for (size_t i = 0; i < count; i++) {
    ad_layout layout = ad_layout_dual(&params[i].layout);
    grads[i] = ad_array_describe(w->comm, AD_F32, &params[i].shape, &layout);
    pointers[i] = &grads[i];
  }
  ad_bucket *bucket = &reducer->buckets[0];
  for (int i = left_out; left_out >= 0 && i + 1 < bucket->key.step_count; i++)
    bucket->key.steps[i] = bucket->key.steps[i + 1];
  bucket->key.step_count -= left_out >= 0;
  ad_status status = ad_reducer_step(reducer, pointers);
  ad_reducer_destroy(reducer);
  return status;
}

static void a_step_of_the_path_that_is_left_out_is_refused_by_type(void **state) {
  const world *w = *state;
  const char *sharded = "dp_replicate=R dp_shard=S0 tp=I", *layout = "dp=R tp=I";
  ad_param_spec full = spec_of(w, "whole", 8, layout, layout);
  ad_param_spec sharded_specs[] = {spec_of(w, "a", 8, layout, sharded), spec_of(w, "b", 3, layout, sharded)};
  assert_int_equal(step_without(w, &full, 1, -1), AD_OK);
  assert_int_equal(step_without(w, sharded_specs, 2, -1), AD_OK);
  assert_int_equal(step_without(w, &full, 1, 0), AD_TYPE);
  assert_says("whole", "dp_replicate");
  assert_int_equal(step_without(w, sharded_specs, 2, 0), AD_TYPE);
  assert_says("b", "a", "dp_shard", "0");
  assert_int_equal(step_without(w, sharded_specs, 2, 1), AD_TYPE);
  assert_says("b", "a", "dp_replicate");
}

/* A gradient that is I on all axes is not reduced. Gradients of different types on an axis share a bucket if nothing is
 * communicated on that axis. */
static void values_of_several_types_share_a_bucket_where_nothing_moves(void **state) {
  const world *w = *state;
  ad_param_spec specs[] = {
      spec_of(w, "rows", 8, "dp=R tp=S0", "dp=R tp=S0"), spec_of(w, "columns", 8, "dp=R tp=S1", "dp=R tp=S1"),
      spec_of(w, "invariant", 8, "dp=R tp=I", "dp=R tp=I"), spec_of(w, "still", 8, "dp=I tp=I", "dp=I tp=I")};
  specs[1].shape = (ad_shape){2, {4, 5}};
  assert_int_equal(step_without(w, specs, 4, -1), AD_OK);
  assert_int_equal(step_without(w, &specs[3], 1, -1), AD_OK);
  assert_int_equal(step_without(w, specs, 3, 0), AD_TYPE);
  assert_says("invariant", "columns", "rows", "dp_replicate");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_a_reducer_cannot_do_is_refused_when_it_is_made),
      cmocka_unit_test(a_policy_fills_what_is_left_out),
      cmocka_unit_test(a_complete_policy_stays_as_it_is),
      cmocka_unit_test(a_policy_that_means_nothing_is_refused),
      cmocka_unit_test(a_policy_takes_no_dtype_of_collectives_alone),
      cmocka_unit_test(buckets_fill_from_the_last_parameter_and_launch_in_that_order),
      cmocka_unit_test(sums_that_wait_are_counted_where_they_have_memory_of_their_own),
      cmocka_unit_test(calls_out_of_order_are_refused_and_change_nothing),
      cmocka_unit_test(buckets_are_posted_in_order_whatever_the_order_of_gradients),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
      cmocka_unit_test(a_step_of_the_path_that_is_left_out_is_refused_by_type),
      cmocka_unit_test(values_of_several_types_share_a_bucket_where_nothing_moves),
  };
  return cmocka_run_group_tests(tests, open_world, close_world);
}
