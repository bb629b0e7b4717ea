/* Tests the reducer in worlds that no recipe has: one rank in low precision, parameters typed I, parameters sharded
 * along their second dimension, gradients that are absent from a microbatch; with precision policies of every kind,
 * every order of syncs, and gradients submitted or written in place. Addends are small integers, so that every sum is
 * exact in every dtype and is compared exactly. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "addend/reduce.h"
#include "kernels/kernels.h"
#include "base/random.h"
#include "ranks.h"

enum { PARAMS = 6, MICROBATCHES = 3, NUMEL_MAX = 64 };

static const ad_shape shapes[PARAMS] = {{2, {6, 3}}, {1, {7}}, {2, {5, 4}}, {2, {4, 2}}, {1, {5}}, {2, {3, 2}}};
static const char *const names[PARAMS] = {"copied",  "invariant",      "by columns",
                                          "by rows", "summed nowhere", "stored invariant"};

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  int shards;  // 1: storage is sharded over dp_shard
} setting;

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_precision_policy policy;
  ad_param_spec specs[PARAMS];
  ad_reducer *reducer;
  ad_sync sync[MICROBATCHES];
  unsigned present[MICROBATCHES];  // bit p: parameter p has a gradient in this microbatch
} world;

static void describe_params(world *w, int shards) {
  static const ad_type types[PARAMS] = {AD_R, AD_I, AD_S(1), AD_S(0), AD_I, AD_R};
  for (int p = 0; p < PARAMS; p++) {
    ad_param_spec *spec = &w->specs[p];
    *spec = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = names[p], .shape = shapes[p], .layout = ad_layout_all(w->mesh, AD_R)};
    ad_layout_set(&spec->layout, AD_AXES(AD_TP), types[p]);
    if (p == 4) spec->layout = ad_layout_all(w->mesh, AD_I);
    spec->storage = spec->layout;
    if (p == 5) ad_layout_set(&spec->storage, AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD), AD_I);
    if (shards && p < 3) ad_layout_set(&spec->storage, AD_AXES(AD_DP_SHARD), AD_S(0));
    spec->policy = w->policy;
  }
}

static void open_world(world *w, ad_comm *comm, const setting *s, const ad_precision_policy *policy) {
  *w = (world){.comm = comm, .policy = *policy};
  CHECK_OK(ad_mesh_create(s->mesh, &w->mesh));
  describe_params(w, s->shards);
  CHECK_OK(ad_reducer_create(comm, w->specs, PARAMS, NULL, &w->reducer));
}

static void close_world(world *w) {
  ad_reducer_destroy(w->reducer);
  ad_mesh_destroy(w->mesh);
}

/* ---- gradients that ranks submit ---- */

/* One element of an addend, from -3 to 4; ranks that do the same work have the same addend. */
static double addend_of(const world *w, int p, int64_t rank, int microbatch, size_t i) {
  ad_layout gradient = ad_layout_dual(&w->specs[p].layout);
  ad_group same = ad_mesh_group(w->mesh, ad_layout_axes_of(&gradient, AD_I), rank);
  uint64_t stream = (uint64_t)same.base * 100 + (uint64_t)microbatch * 10 + (uint64_t)p;
  return (double)(ad_random_bits(5, stream, i) % 8) - 3;
}

static void take_addend(const world *w, int p, int microbatch, size_t numel, double *out) {
  for (size_t i = 0; i < numel; i++) out[i] = addend_of(w, p, ad_comm_rank(w->comm), microbatch, i);
}

/* Writes or adds a gradient into the bucket, as backward does where the reducer offers memory. */
static int write_in_place(world *w, int p, int microbatch) {
  ad_array target;
  int adds;
  CHECK_OK(ad_reducer_target(w->reducer, (size_t)p, &target, &adds));
  if (!target.data) return 0;
  double addend[NUMEL_MAX], before[NUMEL_MAX] = {0};
  size_t numel = ad_array_numel(&target);
  take_addend(w, p, microbatch, numel, addend);
  if (adds) ad_cast(before, AD_F64, target.data, target.dtype, numel);
  for (size_t i = 0; i < numel; i++) before[i] += addend[i];
  ad_cast(target.data, target.dtype, before, AD_F64, numel);
  CHECK_OK(ad_reducer_add(w->reducer, (size_t)p, &target));
  return 1;
}

static void submit(world *w, int p, int microbatch) {
  double addend[NUMEL_MAX], memory[NUMEL_MAX];
  ad_layout layout = ad_layout_dual(&w->specs[p].layout);
  ad_array grad = ad_array_describe(w->comm, w->policy.grad, &shapes[p], &layout);
  take_addend(w, p, microbatch, ad_array_numel(&grad), addend);
  ad_cast(memory, grad.dtype, addend, AD_F64, ad_array_numel(&grad));
  grad.data = memory;
  CHECK_OK(ad_reducer_add(w->reducer, (size_t)p, &grad));
}

static void run_step(world *w, int in_place) {
  for (int m = 0; m < MICROBATCHES; m++) {
    CHECK_OK(ad_reducer_begin_microbatch(w->reducer, w->sync[m]));
    for (int p = PARAMS; p-- > 0;) {
      if (!(w->present[m] >> p & 1)) continue;
      if (!in_place || !write_in_place(w, p, m)) submit(w, p, m);
    }
    CHECK_OK(ad_reducer_end_microbatch(w->reducer));
  }
  CHECK_OK(ad_reducer_finish(w->reducer));
}

/* ---- expected sums ---- */

/* The index, in the gradient that this rank submitted, of the first element of its shard of the result. */
static size_t own_start(const world *w, int p) {
  int64_t rank = ad_comm_rank(w->comm);
  ad_shape local = ad_layout_local_shape(&w->specs[p].layout, &shapes[p], rank);
  ad_group group = ad_mesh_group(w->mesh, AD_AXES(AD_DP_SHARD), rank);
  if (w->specs[p].storage.type[AD_DP_SHARD] != AD_S(0)) return 0;
  ad_span rows = ad_cut(local.dim[0], ad_group_index(&group, rank), ad_group_size(&group));
  return (size_t)(rows.first * (ad_shape_numel(&local) / local.dim[0]));
}

static double expected_sum(const world *w, int p, size_t i) {
  ad_layout gradient = ad_layout_dual(&w->specs[p].layout);
  ad_group group = ad_mesh_group(w->mesh, ad_layout_axes_of(&gradient, AD_P), ad_comm_rank(w->comm));
  double sum = 0;
  for (int m = 0; m < MICROBATCHES; m++)
    for (int64_t k = 0; w->present[m] >> p & 1 && k < ad_group_size(&group); k++)
      sum += addend_of(w, p, ad_group_rank(&group, k), m, i);
  return sum;
}

static void check_sums(const world *w) {
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *result = ad_reducer_gradient(w->reducer, (size_t)p);
    unsigned anywhere = w->present[0] | w->present[1] | w->present[2];
    double found[NUMEL_MAX];
    CHECK(result->dtype == w->policy.accumulate && !result->scale);
    CHECK(ad_layout_equal(&result->layout, &w->specs[p].storage));
    CHECK(ad_reducer_is_absent(w->reducer, (size_t)p) == !(anywhere >> p & 1));
    ad_cast(found, AD_F64, result->data, result->dtype, ad_array_numel(result));
    for (size_t i = 0; i < ad_array_numel(result); i++) CHECK(found[i] == expected_sum(w, p, own_start(w, p) + i));
  }
}

/* ---- all schedules of microbatches ---- */

/* Bit p: parameter p has a gradient in the microbatch. The cases: all parameters have gradients in all microbatches;
 * some parameters never have one; each parameter is absent in some microbatch; each has a gradient in just one
 * microbatch; one microbatch has no gradient at all. */
static const unsigned presences[][MICROBATCHES] = {{63, 63, 63}, {23, 23, 23}, {46, 29, 59}, {17, 4, 42}, {38, 25, 0}};
enum { PRESENCES = sizeof presences / sizeof *presences };

static void run_schedules(world *w) {
  for (int early = 0; early < 9; early++)
    for (int p = 0; p < PRESENCES; p++)
      for (int in_place = 0; in_place < 2; in_place++) {
        w->sync[0] = (ad_sync)(early / 3);
        w->sync[1] = (ad_sync)(early % 3);
        w->sync[2] = AD_SYNC_ALL;
        memcpy(w->present, presences[p], sizeof w->present);
        run_step(w, in_place);
        check_sums(w);
      }
}

static const ad_precision_policy policies[] = {
    {.param = AD_F64, .grad = AD_F64, .reduce = AD_F64, .accumulate = AD_F64},
    {.param = AD_F32, .grad = AD_F32, .reduce = AD_F32, .accumulate = AD_F32},
    {.param = AD_F32, .grad = AD_F32, .reduce = AD_F32, .accumulate = AD_F64},
    {.param = AD_BF16, .grad = AD_BF16, .reduce = AD_BF16, .accumulate = AD_F32},
    {.param = AD_BF16, .grad = AD_BF16, .reduce = AD_F32, .accumulate = AD_F32},
    {.param = AD_BF16, .grad = AD_BF16, .raw = 1, .reduce = AD_BF16, .accumulate = AD_F32},
    {.param = AD_F16, .grad = AD_F16, .reduce = AD_F16, .accumulate = AD_F32},
    {.param = AD_F16, .grad = AD_F32, .reduce = AD_F16, .accumulate = AD_F64},
};
enum { POLICIES = sizeof policies / sizeof *policies };

static int sum_everything(ad_comm *comm, void *context) {
  for (int c = 0; c < POLICIES; c++) {
    world w;
    open_world(&w, comm, context, &policies[c]);
    run_schedules(&w);
    close_world(&w);
  }
  return 0;
}

static void run_setting(const char *mesh, int64_t ranks) {
  for (int shards = 0; shards < 2; shards++) {
    setting s = {mesh, ranks, shards};
    run_ranks(ranks, sum_everything, &s);
  }
}

static void one_rank_sums_exactly(void **state) { run_setting("dp_replicate=1 dp_shard=1 tp=1", 1); }
static void shards_and_replicas_sum_exactly(void **state) { run_setting("dp_replicate=2 dp_shard=2 tp=1", 4); }
static void invariant_and_sharded_parameters_sum_exactly(void **state) { run_setting("dp_shard=2 tp=2", 4); }
static void an_axis_of_every_kind_sums_exactly(void **state) { run_setting("dp_replicate=2 dp_shard=3 tp=2", 12); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_rank_sums_exactly),
      cmocka_unit_test(shards_and_replicas_sum_exactly),
      cmocka_unit_test(invariant_and_sharded_parameters_sum_exactly),
      cmocka_unit_test(an_axis_of_every_kind_sums_exactly),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
