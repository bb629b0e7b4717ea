/* Tests every meaningful precision policy on real ranks against a model of the rounding. A gradient is rounded to its
 * gradient dtype, which the model does too; the remaining error is bounded by the roundings on the way:
 *   |found - exact| <= (2 u(reduce) + n u(accumulate)) S + w t(reduce)
 * S: sum of the addends' magnitudes. n: number of addends. u: a dtype's relative rounding error. 2: a value is rounded
 * to the reduce dtype at most once in each of two reductions. w: number of such roundings behind the result; each may
 * lose a unit t of a subnormal, scaled. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/reduce.h"
#include "kernels/kernels.h"
#include "addend/helpers.h"
#include "reduce/precision_policy.h"
#include "reduce/plan.h"
#include "ranks.h"
#include "reduce/reducer.h"
#include "says.h"

enum { PARAMS = 3, MOST = 64 };

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  int microbatches;
  ad_sync early;  // sync of all microbatches but the last
  ad_precision_policy policy;
  double constant;  // value of every addend; 0: random addends
} setting;

static const ad_shape shapes[PARAMS] = {{2, {5, 3}}, {1, {7}}, {2, {1, 4}}};
static const char *const names[PARAMS] = {"a", "b", "c"};

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  const setting *s;
  ad_param_spec specs[PARAMS];
  ad_reducer *reducer;
} world;

static void open_world(world *w, ad_comm *comm, const setting *s, int shards) {
  *w = (world){.comm = comm, .s = s};
  CHECK_OK(ad_mesh_create(s->mesh, &w->mesh));
  for (int p = 0; p < PARAMS; p++) {
    ad_param_spec *spec = &w->specs[p];
    *spec = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = names[p], .shape = shapes[p], .layout = ad_layout_all(w->mesh, AD_R)};
    spec->storage = spec->layout;
    if (shards) ad_layout_set(&spec->storage, AD_AXES(AD_DP_SHARD), AD_S(0));
    spec->policy = s->policy;
  }
  CHECK_OK(ad_reducer_create(comm, w->specs, PARAMS, NULL, &w->reducer));
}

static void close_world(world *w) {
  ad_reducer_destroy(w->reducer);
  ad_mesh_destroy(w->mesh);
}

/* One element of a gradient as the backward computes it, in f64. */
static double addend(const world *w, int p, int64_t rank, int microbatch, size_t i) {
  if (w->s->constant != 0) return w->s->constant;
  return ad_random_uniform(3, (uint64_t)(rank * 100 + microbatch * 10 + p), i) * 4 - 1.5;
}

static double rounded(double number, ad_dtype dtype) {
  double back, space;
  ad_cast(&space, dtype, &number, AD_F64, 1);
  ad_cast(&back, AD_F64, &space, dtype, 1);
  return back;
}

static ad_status add_all(world *w, int microbatch, ad_dtype produced) {
  for (int p = PARAMS; p-- > 0;) {
    double numbers[MOST], memory[MOST];
    ad_layout gradient = ad_layout_dual(&w->specs[p].layout);
    ad_array grad = ad_array_describe(w->comm, produced, &shapes[p], &gradient);
    size_t numel = ad_array_numel(&grad);
    for (size_t i = 0; i < numel; i++) numbers[i] = addend(w, p, ad_comm_rank(w->comm), microbatch, i);
    ad_cast(memory, produced, numbers, AD_F64, numel);
    grad.data = memory;
    AD_TRY(ad_reducer_add(w->reducer, (size_t)p, &grad));
  }
  return AD_OK;
}

static ad_status run_step(world *w, ad_dtype produced) {
  for (int m = 0; m < w->s->microbatches; m++) {
    AD_TRY(ad_reducer_begin_microbatch(w->reducer, m + 1 < w->s->microbatches ? w->s->early : AD_SYNC_ALL));
    AD_TRY(add_all(w, m, produced));
    AD_TRY(ad_reducer_end_microbatch(w->reducer));
  }
  return ad_reducer_finish(w->reducer);
}

static double unit_of(ad_dtype dtype) {
  return dtype == AD_F64 ? 0x1p-53 : dtype == AD_F32 ? 0x1p-24 : dtype == AD_BF16 ? 0x1p-8 : 0x1p-11;
}

static size_t own_start(const world *w, int p) {
  int64_t rank = ad_comm_rank(w->comm), row = ad_shape_numel(&shapes[p]) / shapes[p].dim[0];
  ad_group group = ad_mesh_group(w->mesh, AD_AXES(AD_DP_SHARD), rank);
  int sharded = w->specs[p].storage.type[AD_DP_SHARD] == AD_S(0);
  ad_span rows = ad_cut(shapes[p].dim[0], ad_group_index(&group, rank), ad_group_size(&group));
  return sharded ? (size_t)(rows.first * row) : 0;
}

/* The bound of one element; policies in f64 must hold the project's own bound. */
static double bound_of(const world *w, double magnitude) {
  const ad_precision_policy *policy = &w->s->policy;
  double addends = (double)(w->s->ranks * w->s->microbatches);
  double lost = policy->reduce == AD_F16 ? 2 * addends * addends * 0x1p-24 : 0;
  if (policy->reduce == AD_F64) return 1e-12 * magnitude;
  return 1.001 * (2 * unit_of(policy->reduce) + addends * unit_of(policy->accumulate)) * magnitude + lost;
}

static void check_sums(const world *w, ad_dtype produced) {
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *result = ad_reducer_gradient(w->reducer, (size_t)p);
    CHECK(result->dtype == w->s->policy.accumulate && !result->scale);
    CHECK(ad_layout_equal(&result->layout, &w->specs[p].storage));
    for (size_t i = 0; i < ad_array_numel(result); i++) {
      double exact = 0, magnitude = 0, found;
      for (int64_t rank = 0; rank < w->s->ranks; rank++)
        for (int m = 0; m < w->s->microbatches; m++) {
          double number = rounded(rounded(addend(w, p, rank, m, own_start(w, p) + i), produced), w->s->policy.grad);
          exact += number;
          magnitude += fabs(number);
        }
      ad_cast(&found, AD_F64, (const char *)result->data + i * ad_dtype_size(result->dtype), result->dtype, 1);
      CHECK(fabs(found - exact) <= bound_of(w, magnitude));
    }
  }
}

static int sum(ad_comm *comm, void *context) {
  const setting *s = context;
  for (int shards = 0; shards < 2; shards++) {
    world w;
    open_world(&w, comm, s, shards);
    for (int step = 0; step < 2; step++) {
      ad_dtype produced = s->constant != 0 ? AD_F64 : step ? AD_F32 : AD_F64;
      CHECK_OK(run_step(&w, produced));
      check_sums(&w, produced);
    }
    close_world(&w);
  }
  return 0;
}

static const char *const meshes[] = {"dp_replicate=2 dp_shard=2", "dp_replicate=3 dp_shard=2",
                                     "dp_replicate=1 dp_shard=4", "dp_replicate=4 dp_shard=1"};
static const int64_t sizes[] = {4, 6, 4, 4};

static void f64_sums_are_those_of_one_process(void **state) {
  for (int mesh = 0; mesh < 4; mesh++)
    for (int microbatches = 1; microbatches <= 5; microbatches += microbatches == 1 ? 1 : 3)
      for (ad_sync early = AD_SYNC_NONE; early <= AD_SYNC_ALL; early++) {
        setting s = {meshes[mesh], sizes[mesh], microbatches, early, {AD_F64, AD_F64, 0, AD_F64, AD_F64}, 0};
        run_ranks(s.ranks, sum, &s);
      }
}

/* Tests all precision policies in one world of ranks. */
static int sum_policies(ad_comm *comm, void *context) {
  setting s = *(const setting *)context;
  for (ad_dtype grad = AD_F64; grad <= AD_F16; grad++)
    for (ad_dtype reduce = AD_F64; reduce <= AD_F16; reduce++)
      for (ad_dtype accumulate = AD_F64; accumulate <= AD_F32; accumulate++) {
        s.policy = (ad_precision_policy){.param = grad, .grad = grad, .reduce = reduce, .accumulate = accumulate};
        if (ad_precision_policy_complete(&s.policy)) continue;
        for (s.early = AD_SYNC_NONE; s.early <= AD_SYNC_ALL; s.early++) sum(comm, &s);
      }
  return 0;
}

static void every_policy_keeps_to_its_bound(void **state) {
  for (int mesh = 0; mesh < 4; mesh++) {
    setting s = {meshes[mesh], sizes[mesh], mesh == 1 ? 5 : 2, AD_SYNC_NONE, {0}, 0};
    run_ranks(s.ranks, sum_policies, &s);
  }
}

static void the_largest_f16_everywhere_does_not_overflow(void **state) {
  for (ad_sync early = AD_SYNC_NONE; early <= AD_SYNC_ALL; early++)
    for (int mesh = 0; mesh < 4; mesh++) {
      setting s = {meshes[mesh], sizes[mesh], 5, early, {AD_F16, AD_F16, 0, AD_F16, AD_F32}, 65504};
      run_ranks(s.ranks, sum, &s);
    }
}

static void the_scale_counts_the_addends(void **state) {
  static const int64_t addends[] = {1, 2, 3, 4, 5, 8, 9, 64, 65};
  static const int scales[] = {0, 1, 2, 2, 3, 3, 4, 6, 7};
  for (int i = 0; i < 9; i++) {
    assert_int_equal(ad_scale_for(AD_F16, addends[i]), scales[i]);
    assert_int_equal(ad_scale_for(AD_BF16, addends[i]), 0);
  }
}

/* ---- which precision policies share a bucket; raw gradients ---- */

static int compare_buckets(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_reducer *reducer;
  CHECK_OK(ad_mesh_create("dp_shard=2", &mesh));
  ad_param_spec specs[4];
  static const ad_precision_policy policies[] = {{.param = AD_BF16},
                                                 {.param = AD_BF16, .grad = AD_F32},
                                                 {.param = AD_BF16},
                                                 {.param = AD_BF16, .grad = AD_F32, .raw = 1}};
  static const char *const called[] = {"a", "b", "c", "d"};
  for (int i = 0; i < 4; i++) {
    specs[i] = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = called[i], .shape = {1, {6}}, .layout = ad_layout_all(mesh, AD_R)};
    specs[i].storage = specs[i].layout;
    specs[i].policy = policies[i];
  }
  CHECK_OK(ad_reducer_create(comm, specs, 4, NULL, &reducer));
  CHECK(ad_reducer_plan_count(reducer) == 3);
  // both raw bf16 gradients: one that is computed in f32 is rounded first
  ad_reduction_plan plan = ad_reducer_plan(reducer, 2);
  CHECK(plan.param_count == 2 && plan.dtype == AD_BF16 && plan.bytes == 24);
  ad_array target;
  int adds;
  CHECK_OK(ad_reducer_begin_microbatch(reducer, AD_SYNC_ALL));
  CHECK_OK(ad_reducer_target(reducer, 0, &target, &adds));
  CHECK(target.dtype == AD_BF16 && target.data && !adds);
  CHECK_OK(ad_reducer_target(reducer, 3, &target, &adds));
  CHECK(target.dtype == AD_F32 && target.data);
  CHECK_OK(ad_reducer_end_microbatch(reducer));
  CHECK_OK(ad_reducer_finish(reducer));
  ad_reducer_destroy(reducer);
  ad_mesh_destroy(mesh);
  return 0;
}

static void policies_never_share_a_bucket(void **state) { run_ranks(2, compare_buckets, NULL); }

static int change_raw(ad_comm *comm, void *context) {
  setting s = {"dp_shard=3", 3, 2, AD_SYNC_NONE, {.param = AD_BF16, .raw = 1, .reduce = AD_F32}, 0};
  world w;
  open_world(&w, comm, &s, 0);
  CHECK_OK(ad_reducer_begin_microbatch(w.reducer, AD_SYNC_NONE));
  CHECK_OK(add_all(&w, 0, AD_F32));
  CHECK_OK(ad_reducer_end_microbatch(w.reducer));
  CHECK_OK(ad_reducer_begin_microbatch(w.reducer, AD_SYNC_ALL));
  CHECK_STATUS(add_all(&w, 1, AD_BF16), AD_TYPE);
  CHECK_SAYS("c", "bf16", "f32");
  CHECK_OK(add_all(&w, 1, AD_F32));
  CHECK_OK(ad_reducer_end_microbatch(w.reducer));
  CHECK_OK(ad_reducer_finish(w.reducer));
  CHECK_STATUS(run_step(&w, ad_comm_rank(comm) == 1 ? AD_F16 : AD_F32), AD_MISMATCH);
  CHECK_SAYS("a");
  CHECK_SAYS("f16", "rank 1");
  CHECK_SAYS("f32", "rank 0", "2");
  close_world(&w);
  return 0;
}

static void a_raw_dtype_that_changes_is_named(void **state) { run_ranks(3, change_raw, NULL); }

static int add_scaled(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  uint16_t memory[4] = {0};
  CHECK_OK(ad_mesh_create("dp_shard=1", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  ad_array a = ad_array_describe(comm, AD_F16, &(ad_shape){1, {4}}, &layout), b = a;
  a.data = b.data = memory;
  b.scale = 3;
  CHECK_STATUS(ad_array_add(&a, &b), AD_TYPE);
  CHECK_SAYS("2", "-3");
  ad_mesh_destroy(mesh);
  return 0;
}

static void unequal_scales_never_meet(void **state) { run_ranks(1, add_scaled, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(f64_sums_are_those_of_one_process),
      cmocka_unit_test(every_policy_keeps_to_its_bound),
      cmocka_unit_test(the_largest_f16_everywhere_does_not_overflow),
      cmocka_unit_test(the_scale_counts_the_addends),
      cmocka_unit_test(policies_never_share_a_bucket),
      cmocka_unit_test(a_raw_dtype_that_changes_is_named),
      cmocka_unit_test(unequal_scales_never_meet),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
