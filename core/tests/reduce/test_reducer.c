/* Tests the reducer on real ranks: every gradient is the sum of all addends, each once, whatever the mesh, the
 * microbatches, the buckets, and the order in which gradients arrive. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "allocations.h"
#include "gradients.h"
#include "base/memory.h"
#include "reduce/plan.h"
#include "says.h"

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  schedule steps;
  int shards;
} setting;

static const char *const meshes[] = {"dp_replicate=1 dp_shard=1", "dp_replicate=3 dp_shard=1",
                                     "dp_replicate=3 dp_shard=2", "dp_shard=5", "dp_shard=2 tp=2"};
static const int64_t sizes[] = {1, 3, 6, 5, 4};
enum { MESHES = sizeof sizes / sizeof *sizes };

static void on_every_mesh(int (*body)(ad_comm *comm, void *context), const schedule *steps) {
  for (int i = 0; i < MESHES; i++) {
    for (int shards = 0; shards < 2; shards++) {
      setting s = {meshes[i], sizes[i], *steps, shards};
      run_ranks(s.ranks, body, &s);
    }
  }
}

/* Runs two steps each with tiny buckets, buckets of a few parameters, and one bucket. */
static int sum_steps(ad_comm *comm, void *context) {
  const setting *s = context;
  static const size_t bucket_bytes[] = {1, 200, 0};
  for (int dtype = AD_F64; dtype <= AD_F32; dtype++)
    for (int k = 0; k < 3; k++) {
      model m;
      open_model(&m, comm, s->mesh, (ad_dtype)dtype);
      if (s->shards) shard_storage(&m);
      create_reducer(&m, bucket_bytes[k]);
      for (int step = 0; step < 2; step++) {
        CHECK_OK(run_step(&m, &s->steps));
        CHECK(sums_are(&m, &s->steps, 1));
      }
      close_model(&m);
    }
  return 0;
}

static void gradients_are_summed_over_ranks_and_microbatches(void **state) {
  for (int microbatches = 1; microbatches <= 5; microbatches += microbatches == 1 ? 1 : 3) {
    schedule steps = full_schedule(microbatches);
    on_every_mesh(sum_steps, &steps);
  }
}

static void an_absent_gradient_keeps_the_partial_addends(void **state) {
  schedule steps = full_schedule(3);
  steps.present[0] = 0x1b;
  steps.present[1] = 0x0e;
  steps.present[2] = 0x11;  // query has a gradient in the second microbatch alone, norm in all but the last
  on_every_mesh(sum_steps, &steps);
}

static void a_microbatch_that_reduces_early_is_not_reduced_again(void **state) {
  schedule steps = full_schedule(4);
  steps.sync[0] = steps.sync[2] = AD_SYNC_ALL;
  steps.present[2] = 0x05;
  on_every_mesh(sum_steps, &steps);
}

static int leave_out(ad_comm *comm, void *context) {
  const setting *s = context;
  model m;
  open_model(&m, comm, s->mesh, AD_F64);
  if (s->shards) shard_storage(&m);
  create_reducer(&m, 0);
  schedule full = full_schedule(1);
  CHECK_OK(run_step(&m, &full));
  CHECK_OK(run_step(&m, &s->steps));
  CHECK(sums_are(&m, &s->steps, 1));
  for (int i = 0; i < PARAMS; i++) CHECK(ad_reducer_is_absent(m.reducer, (size_t)i) == (i == 2));
  close_model(&m);
  return 0;
}

static void a_parameter_absent_everywhere_has_a_zero_gradient(void **state) {
  schedule steps = full_schedule(2);
  steps.present[0] = steps.present[1] = 0x1b;
  on_every_mesh(leave_out, &steps);
}

/* ---- parameters of all types ---- */

/* The parameters' types on tp: columns sharded unevenly, rows sharded unevenly, I twice (same work on all ranks), and
 * R. */
static void mix_types(model *m) {
  static const ad_type on_tp[PARAMS] = {AD_S(1), AD_S(0), AD_I, AD_I, AD_R};
  static const ad_shape shapes[PARAMS] = {{2, {4, 3}}, {2, {5, 2}}, {1, {3}}, {2, {3, 2}}, {1, {6}}};
  for (int p = 0; p < PARAMS; p++) {
    ad_param_spec *spec = &m->params[p];
    spec->shape = shapes[p];
    spec->layout = ad_layout_all(m->mesh, p == 3 ? AD_I : AD_R);
    ad_layout_set(&spec->layout, AD_AXES(AD_TP), on_tp[p]);
    spec->storage = spec->layout;
  }
}

static int sum_mixed(ad_comm *comm, void *context) {
  const setting *s = context;
  for (size_t bytes = 1; bytes <= 4096; bytes *= 4096) {
    model m;
    double norm, square = 0;
    open_model(&m, comm, s->mesh, AD_F64);
    mix_types(&m);
    if (s->shards) shard_storage(&m);
    m.params[3].storage = m.params[3].layout;  // a gradient that is not summed cannot be reduce-scattered
    m.params[1].storage = m.params[1].layout;  // the rows are sharded already
    create_reducer(&m, bytes);
    CHECK_OK(run_step(&m, &s->steps));
    ad_group all = ad_mesh_group(m.mesh, AD_AXES_ALL, ad_comm_rank(comm));
    CHECK_OK(ad_reducer_norm(m.reducer, &all, &norm));
    for (int p = 0; p < PARAMS; p++) {
      const ad_array *grad = ad_reducer_gradient(m.reducer, (size_t)p);
      size_t start = p == 1 || p == 3 ? 0 : result_start(&m, p);
      for (size_t i = 0; i < ad_array_numel(grad); i++)
        CHECK(((double *)grad->data)[i] == expected_sum(&m, &s->steps, p, start + i));
      double values[64] = {0};
      ad_array out = {.data = values};
      CHECK_OK(ad_array_full(comm, grad, &out));
      for (size_t i = 0; i < ad_array_numel(&out); i++) square += values[i] * values[i];
    }
    CHECK(fabs(norm - sqrt(square)) <= 1e-12 * norm);
    close_model(&m);
  }
  return 0;
}

static void parameters_of_all_types_are_summed_where_they_are_replicated(void **state) {
  for (int shards = 0; shards < 2; shards++) {
    setting s = {"dp_shard=3 tp=2", 6, full_schedule(3), shards};
    run_ranks(6, sum_mixed, &s);
    s.mesh = "dp_replicate=2 dp_shard=1 tp=2";
    run_ranks(4, sum_mixed, &s);
  }
}

/* ---- bits of replicas, the norm, a step as one call ---- */

static void check_same_bits(ad_comm *comm, const ad_mesh *mesh, const ad_array *array) {
  ad_axes same = ad_layout_axes_of(&array->layout, AD_R) | ad_layout_axes_of(&array->layout, AD_I);
  ad_collective call = {
      .size = sizeof call, .op = AD_BROADCAST, .group = ad_mesh_group(mesh, same, ad_comm_rank(comm)), .site = AD_HERE};
  uint8_t first[512];
  CHECK(ad_array_bytes(array) <= sizeof first);
  memcpy(first, array->data, ad_array_bytes(array));
  call.in = call.out = first;
  call.count = ad_array_numel(array);
  call.dtype = array->dtype;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(!memcmp(first, array->data, ad_array_bytes(array)));
}

static int step_on_uneven_numbers(ad_comm *comm, void *context) {
  const setting *s = context;
  model m;
  double memory[PARAMS][64], norm, square = 0;
  ad_array grads[PARAMS];
  const ad_array *pointers[PARAMS];
  open_model(&m, comm, s->mesh, AD_F64);
  if (s->shards) shard_storage(&m);
  create_reducer(&m, 100);
  for (int p = 0; p < PARAMS; p++) {
    grads[p] = describe_gradient(&m, p);
    grads[p].data = memory[p];
    for (size_t i = 0; i < ad_array_numel(&grads[p]); i++)
      memory[p][i] = addend_of(&m, p, ad_comm_rank(comm), 0, i) / 3;
    pointers[p] = &grads[p];
  }
  CHECK_OK(ad_reducer_step(m.reducer, pointers));
  for (int p = 0; p < PARAMS; p++) check_same_bits(comm, m.mesh, ad_reducer_gradient(m.reducer, (size_t)p));
  ad_group all = ad_mesh_group(m.mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_reducer_norm(m.reducer, &all, &norm));
  for (int p = 0; p < PARAMS; p++) {
    double values[64] = {0};
    ad_array out = {.data = values};
    CHECK_OK(ad_array_full(comm, ad_reducer_gradient(m.reducer, (size_t)p), &out));
    for (size_t i = 0; i < ad_array_numel(&out); i++) square += values[i] * values[i];
  }
  CHECK(fabs(norm - sqrt(square)) <= 1e-12 * norm);
  close_model(&m);
  return 0;
}

static void replicas_agree_bit_for_bit_and_the_norm_counts_once(void **state) {
  schedule steps = full_schedule(1);
  on_every_mesh(step_on_uneven_numbers, &steps);
}

/* ---- gradients in other dtypes than their precision policy's ---- */

static int bring_dtypes(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=2", AD_F32);
  m.params[0].policy = (ad_precision_policy){.param = AD_BF16, .reduce = AD_F32};
  m.params[1].policy = (ad_precision_policy){.param = AD_BF16, .raw = 1, .reduce = AD_F32};
  create_reducer(&m, 0);
  ad_array target;
  int adds;
  double third[16];
  for (int i = 0; i < 16; i++) third[i] = 1.0 / 3;
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL));
  CHECK_OK(ad_reducer_target(m.reducer, 0, &target, &adds));
  CHECK(target.data == NULL && target.dtype == AD_F32);
  for (int p = 0; p < 2; p++) {
    ad_array grad = describe_gradient(&m, p);
    grad.dtype = AD_F64;
    grad.data = third;
    CHECK_OK(ad_reducer_add(m.reducer, (size_t)p, &grad));
  }
  CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  CHECK_OK(ad_reducer_finish(m.reducer));
  float through_bf16 = ((const float *)ad_reducer_gradient(m.reducer, 0)->data)[0];
  float raw = ((const float *)ad_reducer_gradient(m.reducer, 1)->data)[0];
  CHECK(through_bf16 == 2 * 0.333984375f);  // the bf16 number nearest to 1/3
  CHECK(raw == 2 * (float)(1.0 / 3));
  close_model(&m);
  return 0;
}

static void a_gradient_passes_through_its_policy(void **state) { run_ranks(2, bring_dtypes, NULL); }

/* ---- allocations ---- */

static int count_allocations(ad_comm *comm, void *context) {
  const setting *s = context;
  model m;
  open_model(&m, comm, s->mesh, AD_F64);
  if (s->shards) shard_storage(&m);
  create_reducer(&m, 64);
  CHECK_OK(run_step(&m, &s->steps));
  ad_memory_fail_at(0);
  CHECK_OK(run_step(&m, &s->steps));
  CHECK(ad_memory_fail_at(0) == 0);
  close_model(&m);
  return 0;
}

static void a_step_no_larger_than_an_earlier_one_allocates_nothing(void **state) {
  schedule steps = full_schedule(3);
  steps.sync[0] = AD_SYNC_ALL;
  on_every_mesh(count_allocations, &steps);
}

static ad_status create_and_step(model *m) {
  double memory[PARAMS][64];
  ad_array grads[PARAMS];
  const ad_array *pointers[PARAMS];
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = 64};
  for (int p = 0; p < PARAMS; p++) {
    memset(memory[p], 0, sizeof memory[p]);
    grads[p] = describe_gradient(m, p);
    grads[p].data = memory[p];
    pointers[p] = &grads[p];
  }
  AD_TRY(ad_reducer_create(m->comm, m->params, PARAMS, &options, &m->reducer));
  ad_status status = ad_reducer_step(m->reducer, pointers);
  ad_reducer_destroy(m->reducer);
  m->reducer = NULL;
  return status;
}

static int fail_each_allocation(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F64);
  ad_status status = AD_MEMORY;
  for (long n = 1; status; n++) {
    ad_memory_fail_at(n);
    status = create_and_step(&m);
    CHECK(reports_allocation(n, status));
    CHECK(m.reducer == NULL && n < 500);
  }
  close_model(&m);
  return 0;
}

static void a_failed_allocation_leaves_nothing_behind(void **state) { run_ranks(1, fail_each_allocation, NULL); }

/* One rank runs out of memory and leaves; the other ranks get an error, and none hangs. */
static int fail_on_one_rank(ad_comm *comm, void *context) {
  long n = *(const long *)context;
  model m;
  open_model(&m, comm, "dp_shard=3", AD_F64);
  ad_memory_fail_at(ad_comm_rank(comm) == 1 ? n : 0);
  ad_status status = create_and_step(&m);
  ad_memory_fail_at(0);
  if (ad_comm_rank(comm) == 1 && status) CHECK_STATUS(status, AD_MEMORY);
  if (ad_comm_rank(comm) != 1 && status) CHECK_STATUS(status, AD_RANK_LEFT);
  CHECK(status || n > 1);
  close_model(&m);
  return 0;
}

static void a_rank_without_memory_stops_the_others(void **state) {
  for (long n = 1; n < 40; n += 3) run_ranks(3, fail_on_one_rank, &n);
}

/* A rank posts its first bucket and gives up. Its bucket's memory stays valid for its peers, who then learn that the
 * rank left. */
static int give_up_in_a_step(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=3", AD_F64);
  create_reducer(&m, 1);
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL));
  add_gradient(&m, PARAMS - 1, 0);
  if (ad_comm_rank(comm) != 1) {
    CHECK_OK(ad_reducer_end_microbatch(m.reducer));
    CHECK_STATUS(ad_reducer_finish(m.reducer), AD_RANK_LEFT);
    CHECK_SAYS("rank 1");
  }
  close_model(&m);
  return 0;
}

static void a_rank_that_gives_up_in_a_step_stops_the_others(void **state) { run_ranks(3, give_up_in_a_step, NULL); }

/* ---- disagreement between ranks ---- */

static int differing_sets(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_replicate=3 dp_shard=1", AD_F64);
  create_reducer(&m, 64);
  schedule s = full_schedule(2);
  CHECK_OK(run_step(&m, &s));
  if (ad_comm_rank(comm) == 1) s.present[0] = 0x1b;
  CHECK(run_step(&m, &s) == AD_MISMATCH);
  CHECK_SAYS("gradients.h", "query", "in 1", "rank 1", "in 2", "rank 0");
  s = full_schedule(2);
  CHECK_OK(run_step(&m, &s));  // the reducer can be used again
  CHECK(sums_are(&m, &s, 1));
  close_model(&m);
  return 0;
}

static void a_set_that_differs_names_parameter_and_ranks_everywhere(void **state) {
  run_ranks(3, differing_sets, NULL);
}

/* Ranks that differ along tp are found, though every parameter is I on tp and nothing is reduced there. */
static int differ_along_another_axis(ad_comm *comm, void *context) {
  model m;
  int differs_in_list = *(const int *)context, odd_one = ad_comm_rank(comm) % 2;
  open_model(&m, comm, "dp_shard=2 tp=2", AD_F64);
  for (int p = 0; p < PARAMS; p++) {
    m.params[p].layout = ad_layout_all(m.mesh, AD_R);
    ad_layout_set(&m.params[p].layout, AD_AXES(AD_TP), AD_I);
    m.params[p].storage = m.params[p].layout;
  }
  if (odd_one && differs_in_list) m.params[2].name = "key";
  create_reducer(&m, 64);
  schedule s = full_schedule(2);
  if (odd_one) s.present[0] = 0x1b;
  ad_status status = differs_in_list ? ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL) : run_step(&m, &s);
  CHECK_STATUS(status, AD_MISMATCH);
  if (differs_in_list)
    CHECK_SAYS("key", "query");
  else
    CHECK_SAYS("query", "in 2", "rank 0", "in 1", "rank 1");
  close_model(&m);
  return 0;
}

static void ranks_that_share_no_reduction_must_agree_too(void **state) {
  for (int differs_in_list = 0; differs_in_list < 2; differs_in_list++)
    run_ranks(4, differ_along_another_axis, &differs_in_list);
}

typedef enum difference {
  OTHER_NAME,
  OTHER_SHAPE,
  OTHER_POLICY,
  OTHER_COUNT,
  OTHER_BUCKETS,
  OTHER_FROZEN,
  DIFFERENCES
} difference;

static int differing_lists(ad_comm *comm, void *context) {
  difference what = *(const difference *)context;
  static const char *const facts[][4] = {{"rank 2", "key"},
                                         {"rank 2", "[4, 3]"},
                                         {"rank 2", "grad f32"},
                                         {"rank 2", "parameter 4", "head"},
                                         {"rank 2", "bucket_bytes 77"},
                                         {"rank 2", "query"}};
  model m;
  int odd_one = ad_comm_rank(comm) == 2;
  open_model(&m, comm, "dp_replicate=3 dp_shard=1", AD_F64);
  if (odd_one && what == OTHER_NAME) m.params[2].name = "key";
  if (odd_one && what == OTHER_SHAPE) m.params[2].shape.dim[1] = 3;
  if (odd_one && what == OTHER_FROZEN) m.params[2].frozen = 1;
  if (odd_one && what == OTHER_POLICY) m.params[2].policy.grad = AD_F32;
  if (odd_one && what == OTHER_POLICY) m.params[2].policy.reduce = AD_F64;
  ad_reducer_options options = {.size = sizeof options, .bucket_bytes = odd_one && what == OTHER_BUCKETS ? 77 : 100};
  size_t count = odd_one && what == OTHER_COUNT ? PARAMS - 1 : PARAMS;
  CHECK_OK(ad_reducer_create(comm, m.params, count, &options, &m.reducer));
  CHECK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL) == AD_MISMATCH);
  CHECK_SAYS("test_reducer.c");
  CHECK_SAYS_ALL(facts[what]);
  CHECK_STATUS(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL), AD_INVALID);
  CHECK_LISTED();
  close_model(&m);
  return 0;
}

static void lists_that_differ_are_named_at_the_first_step(void **state) {
  for (difference what = 0; what < DIFFERENCES; what++) run_ranks(3, differing_lists, &what);
}

/* ---- wrong arguments and calls in a wrong order ---- */

static void is_refused(const model *m, const ad_param_spec *params) {
  ad_reducer *reducer = NULL;
  CHECK_STATUS(ad_reducer_create(m->comm, params, PARAMS, NULL, &reducer), AD_INVALID);
  CHECK(!reducer);
}
#define refuse_create(model, params, ...) (is_refused((model), (params)), CHECK_SAYS(__VA_ARGS__))

static int describe_wrongly(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  model good = m;
  refuse_create(&m, NULL, "params", "NULL");
  m.params[2].layout.mesh = NULL;
  refuse_create(&m, m.params, "query");
  m = good;
  m.params[2].storage = (ad_layout){0};
  refuse_create(&m, m.params, "query");
  ad_mesh_destroy(good.mesh);
  return 0;
}

static void parameters_without_a_mesh_are_refused(void **state) { run_ranks(1, describe_wrongly, NULL); }

static int shape_wrongly(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  m.params[2].shape.dim[1] = -2;
  refuse_create(&m, m.params, "query", "dimension 1", "size -2");
  m.params[2].shape.ndim = AD_DIMS_MAX + 1;
  refuse_create(&m, m.params, "query", "7 dimensions");
  m.params[2].shape.ndim = -1;
  refuse_create(&m, m.params, "query", "-1 dimensions");
  ad_mesh_destroy(m.mesh);
  return 0;
}

static void impossible_shapes_are_refused(void **state) { run_ranks(1, shape_wrongly, NULL); }

static int sync_wrongly(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  create_reducer(&m, 0);
  CHECK_STATUS(ad_reducer_begin_microbatch(m.reducer, (ad_sync)7), AD_INVALID);
  CHECK_SAYS("7");
  schedule s = full_schedule(2);
  CHECK_OK(run_step(&m, &s));  // the refused calls began nothing
  close_model(&m);
  return 0;
}

static void a_sync_that_is_none_of_the_three_is_refused(void **state) { run_ranks(1, sync_wrongly, NULL); }

static void is_mistyped(model *m, ad_type shard, ad_type replicate) {
  ad_array grad = describe_gradient(m, 2);
  ad_layout_set(&grad.layout, AD_AXES(AD_DP_SHARD), shard);
  ad_layout_set(&grad.layout, AD_AXES(AD_DP_REPLICATE), replicate);
  CHECK_STATUS(ad_reducer_add(m->reducer, 2, &grad), AD_TYPE);
}
#define refuse_gradient(model, shard, replicate, ...) \
  (is_mistyped((model), (shard), (replicate)), CHECK_SAYS("ad_layout_dual", __VA_ARGS__))

static int type_wrongly(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  create_reducer(&m, 0);
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL));
  refuse_gradient(&m, AD_R, AD_P, "dp_shard=R", "dp_shard=P");
  refuse_gradient(&m, AD_P, AD_I, "dp_replicate=I");
  close_model(&m);
  return 0;
}

static void a_gradient_of_another_type_is_refused_with_the_axes_that_matter(void **state) {
  run_ranks(1, type_wrongly, NULL);
}

static int add_nothing(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  create_reducer(&m, 0);
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL));
  CHECK_STATUS(ad_reducer_add(m.reducer, 2, NULL), AD_INVALID);
  CHECK_SAYS("query", "NULL");
  add_gradient(&m, 2, 0);
  CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  CHECK_OK(ad_reducer_finish(m.reducer));
  close_model(&m);
  return 0;
}

static void a_gradient_that_is_null_is_refused(void **state) { run_ranks(1, add_nothing, NULL); }

static int call_out_of_turn(ad_comm *comm, void *context) {
  model m;
  ad_array target;
  int adds;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  create_reducer(&m, 0);
  CHECK_STATUS(ad_reducer_end_microbatch(m.reducer), AD_INVALID);
  CHECK_SAYS("test_reducer.c");
  CHECK_SAYS("end_microbatch");
  CHECK_STATUS(ad_reducer_finish(m.reducer), AD_INVALID);
  CHECK_SAYS("test_reducer.c");
  CHECK_STATUS(ad_reducer_target(m.reducer, 0, &target, &adds), AD_INVALID);
  CHECK_SAYS("test_reducer.c");
  CHECK_STATUS(ad_reducer_add_at(m.reducer, 0, NULL, "mine.c:3"), AD_INVALID);
  CHECK_SAYS("mine.c:3");
  CHECK_OK(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_NONE));
  CHECK_STATUS(ad_reducer_begin_microbatch(m.reducer, AD_SYNC_ALL), AD_INVALID);
  CHECK_SAYS("test_reducer.c");
  CHECK_LISTED();
  CHECK_STATUS(ad_reducer_add_at(m.reducer, PARAMS, NULL, NULL), AD_INVALID);
  CHECK_LISTED();
  CHECK_OK(ad_reducer_end_microbatch(m.reducer));
  CHECK_STATUS(ad_reducer_finish(m.reducer), AD_INVALID);
  CHECK_SAYS("AD_SYNC_ALL");
  CHECK_STATUS(ad_reducer_step(NULL, NULL), AD_INVALID);
  CHECK_SAYS("NULL");
  close_model(&m);
  return 0;
}

static void a_call_out_of_turn_names_its_line_and_changes_nothing(void **state) {
  run_ranks(1, call_out_of_turn, NULL);
}

static int step_with_one_bad_gradient(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_replicate=2", AD_F32);
  create_reducer(&m, 0);
  ad_array bad = describe_gradient(&m, 0);
  const ad_array *grads[PARAMS] = {&bad};
  ad_layout_set(&bad.layout, AD_AXES(AD_DP_REPLICATE), AD_R);
  CHECK_STATUS(ad_reducer_step(m.reducer, grads), AD_TYPE);
  CHECK_SAYS("test_reducer.c");
  bad.layout.mesh = NULL;
  CHECK_STATUS(ad_reducer_step(m.reducer, grads), AD_INVALID);
  CHECK_LISTED();
  CHECK_STATUS(ad_reducer_step(m.reducer, NULL), AD_INVALID);
  CHECK_SAYS("grads", "NULL");
  schedule s = full_schedule(2);
  CHECK_OK(run_step(&m, &s));
  CHECK(sums_are(&m, &s, 1));
  close_model(&m);
  return 0;
}

static void a_step_looks_at_all_gradients_before_it_takes_one(void **state) {
  run_ranks(2, step_with_one_bad_gradient, NULL);
}

/* Asks for parameters and buckets by numbers that do not exist. */
static int ask_beyond(ad_comm *comm, void *context) {
  model m;
  open_model(&m, comm, "dp_shard=1", AD_F32);
  create_reducer(&m, 0);
  CHECK(ad_reducer_gradient(m.reducer, PARAMS - 1) != NULL);
  ad_array described = ad_reducer_describe(m.reducer, 2);
  CHECK(described.dtype == AD_F32 && ad_array_numel(&described) == 8 && described.layout.type[AD_DP_SHARD] == AD_P);
  for (size_t param = PARAMS; param; param = param == PARAMS ? SIZE_MAX : 0) {
    CHECK(ad_reducer_gradient(m.reducer, param) == NULL);
    CHECK_SAYS("ad_reducer_gradient", param == PARAMS ? "parameter 5" : "parameter -1", "are 5");
    CHECK(ad_reducer_is_absent(m.reducer, param) && !ad_reducer_describe(m.reducer, param).layout.mesh);
    CHECK(ad_reducer_precision_policy(m.reducer, param).param == 0);
    CHECK(ad_reducer_bucket(m.reducer, param).param_count == 0 && ad_reducer_plan(m.reducer, param).param_count == 0);
  }
  close_model(&m);
  return 0;
}

static void a_number_that_no_parameter_has_finds_nothing(void **state) { run_ranks(1, ask_beyond, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(gradients_are_summed_over_ranks_and_microbatches),
      cmocka_unit_test(an_absent_gradient_keeps_the_partial_addends),
      cmocka_unit_test(a_microbatch_that_reduces_early_is_not_reduced_again),
      cmocka_unit_test(a_parameter_absent_everywhere_has_a_zero_gradient),
      cmocka_unit_test(parameters_of_all_types_are_summed_where_they_are_replicated),
      cmocka_unit_test(replicas_agree_bit_for_bit_and_the_norm_counts_once),
      cmocka_unit_test(a_gradient_passes_through_its_policy),
      cmocka_unit_test(a_step_no_larger_than_an_earlier_one_allocates_nothing),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
      cmocka_unit_test(a_rank_without_memory_stops_the_others),
      cmocka_unit_test(a_rank_that_gives_up_in_a_step_stops_the_others),
      cmocka_unit_test(a_set_that_differs_names_parameter_and_ranks_everywhere),
      cmocka_unit_test(ranks_that_share_no_reduction_must_agree_too),
      cmocka_unit_test(lists_that_differ_are_named_at_the_first_step),
      cmocka_unit_test(parameters_without_a_mesh_are_refused),
      cmocka_unit_test(impossible_shapes_are_refused),
      cmocka_unit_test(a_sync_that_is_none_of_the_three_is_refused),
      cmocka_unit_test(a_gradient_of_another_type_is_refused_with_the_axes_that_matter),
      cmocka_unit_test(a_gradient_that_is_null_is_refused),
      cmocka_unit_test(a_call_out_of_turn_names_its_line_and_changes_nothing),
      cmocka_unit_test(a_number_that_no_parameter_has_finds_nothing),
      cmocka_unit_test(a_step_looks_at_all_gradients_before_it_takes_one),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
