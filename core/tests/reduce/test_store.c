/* Tests the store (which keeps parameters sharded) on real ranks: whatever the mesh, the sharding, the dtypes and the
 * window, a rank that acquires a parameter gets the full value from the owners' parts. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "allocations.h"
#include "addend/store.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "reduce/plan.h"
#include "ranks.h"
#include "says.h"
#include "comm/shared.h"

enum { PARAMS = 7 };

typedef struct setting {
  const char *mesh;
  int64_t ranks;
  ad_dtype param, compute;
  int releases, prefetch, apart;
  int parts; /* 1: each replica updates a part of its shards */
} setting;

typedef struct world {
  ad_comm *comm;
  ad_mesh *mesh;
  ad_param_spec specs[PARAMS];
  ad_store *store;
  const setting *s;
} world;

/* Parameters with uneven parts, with fewer elements than ranks, and empty; the last is tied to the first unit. */
static const ad_shape shapes[PARAMS] = {{2, {5, 3}}, {1, {7}},    {2, {4, 6}}, {1, {1}},
                                        {2, {0, 3}}, {2, {9, 2}}, {1, {8}}};
static const char *const names[PARAMS] = {"a", "b", "c", "d", "e", "f", "g"};
static const int units[PARAMS] = {1, 1, 4, 4, 7, 9, 1};

static void describe(world *w) {
  int has_tp = ad_mesh_axis_size(w->mesh, AD_TP) > 1;
  for (int i = 0; i < PARAMS; i++) {
    ad_param_spec *spec = &w->specs[i];
    *spec = (ad_param_spec){
        .size = sizeof(ad_param_spec), .name = names[i], .shape = shapes[i], .layout = ad_layout_all(w->mesh, AD_R)};
    if (has_tp && i == 2) ad_layout_set(&spec->layout, AD_AXES(AD_TP), AD_S(1));
    if (has_tp && i == 5) ad_layout_set(&spec->layout, AD_AXES(AD_TP), AD_S(0));
    if (has_tp && i == 1) ad_layout_set(&spec->layout, AD_AXES(AD_TP), AD_I);
    spec->storage = spec->layout;
    if (i != 3) ad_layout_set(&spec->storage, AD_AXES(AD_DP_SHARD), AD_S(0));
    spec->update = spec->storage;
    if (i != 3 && w->s->parts) ad_layout_set(&spec->update, AD_AXES(AD_DP_REPLICATE), AD_S(0));
    spec->policy = (ad_precision_policy){.param = w->s->param};
    spec->unit = units[i];
  }
}

static void open_world(world *w, ad_comm *comm, const setting *s) {
  *w = (world){.comm = comm, .s = s};
  CHECK_OK(ad_mesh_create(s->mesh, &w->mesh));
  describe(w);
  ad_store_options options = {.size = sizeof options, .compute = s->compute, .releases = s->releases};
  options.prefetch = s->prefetch;
  options.apart = s->apart;
  CHECK_OK(ad_store_create(comm, w->specs, PARAMS, &options, &w->store));
}

static void close_world(world *w) {
  ad_store_destroy(w->store);
  ad_mesh_destroy(w->mesh);
}

/* The number of an element in the full value: `at` counts from the first row of this rank's part in `layout`. */
static double number_of(const world *w, int param, const ad_layout *layout, size_t at, int version) {
  ad_span spans[8];
  const ad_shape *shape = &shapes[param];
  int64_t rank = ad_comm_rank(w->comm), index = 0, rest = (int64_t)at;
  ad_shape local = ad_layout_local_shape(layout, shape, rank);
  for (int dim = 0, divisor = 1; dim < shape->ndim; dim++) {
    divisor = dim + 1 < shape->ndim ? (int)local.dim[dim + 1] : 1;
    CHECK(ad_layout_spans(layout, dim, shape->dim[dim], rank, spans, 8) <= 1);
    index = index * shape->dim[dim] + spans[0].first + rest / divisor;
    rest %= divisor;
  }
  return (double)(index * 8 + param) / 3 + version;
}

static void write_values(world *w, int version, int masters) {
  for (int p = 0; p < PARAMS; p++) {
    ad_array *to = masters ? ad_store_master(w->store, (size_t)p) : ad_store_value(w->store, (size_t)p);
    CHECK(ad_layout_equal(&to->layout, masters ? &w->specs[p].update : &w->specs[p].storage));
    for (size_t i = 0; i < ad_array_numel(to); i++) {
      double number = number_of(w, p, &to->layout, i, version);
      ad_cast((char *)to->data + i * ad_dtype_size(to->dtype), to->dtype, &number, AD_F64, 1);
    }
  }
}

/* The number as it is stored: rounded to the master's dtype if there is one, and to the compute dtype. */
static double held(const world *w, double number, int through_master) {
  double out, wide = number;
  float master;
  uint16_t value[4];
  if (through_master && w->s->param != AD_F64) {
    ad_cast(&master, AD_F32, &number, AD_F64, 1);
    ad_cast(&wide, AD_F64, &master, AD_F32, 1);
  }
  ad_cast(value, w->s->param, &wide, AD_F64, 1);
  ad_cast(&wide, AD_F64, value, w->s->param, 1);
  ad_cast(value, w->s->compute, &wide, AD_F64, 1);
  ad_cast(&out, AD_F64, value, w->s->compute, 1);
  return out;
}

static void check_param(const world *w, int p, int version, int through_master) {
  const ad_array *compute = ad_store_compute(w->store, (size_t)p);
  CHECK(compute->dtype == w->s->compute && ad_layout_equal(&compute->layout, &w->specs[p].layout));
  for (size_t i = 0; i < ad_array_numel(compute); i++) {
    double found, want = held(w, number_of(w, p, &compute->layout, i, version), through_master);
    ad_cast(&found, AD_F64, (const char *)compute->data + i * ad_dtype_size(compute->dtype), compute->dtype, 1);
    CHECK(found == want);
  }
}

static void use(world *w, int p, int version, int through_master) {
  CHECK_OK(ad_store_acquire(w->store, (size_t)p));
  check_param(w, p, version, through_master);
  ad_store_release(w->store, (size_t)p);
}

/* Uses all units in forward and in backward order; the tied parameter is also used after the last unit, inside another
 * use. */
static void run_passes(world *w, int version, int through_master) {
  CHECK_OK(ad_store_begin_pass(w->store, AD_FORWARD));
  for (int p = 0; p < PARAMS - 1; p++) use(w, p, version, through_master);
  use(w, PARAMS - 1, version, through_master);
  CHECK_OK(ad_store_end_pass(w->store));
  CHECK_OK(ad_store_begin_pass(w->store, AD_BACKWARD));
  use(w, PARAMS - 1, version, through_master);
  CHECK_OK(ad_store_acquire(w->store, 5));
  use(w, 4, version, through_master);
  check_param(w, 5, version, through_master);
  ad_store_release(w->store, 5);
  for (int p = 4; p-- > 0;) use(w, p, version, through_master);
  CHECK_OK(ad_store_end_pass(w->store));
}

/* Checks that the masters are the values that were written, in their own dtype: those that came from values are rounded
 * to the values' dtype. */
static void check_masters(const world *w, int version, int through_master) {
  for (int p = 0; p < PARAMS; p++) {
    const ad_array *master = ad_store_master(w->store, (size_t)p);
    for (size_t i = 0; i < ad_array_numel(master); i++) {
      double found, want = number_of(w, p, &master->layout, i, version);
      uint16_t value[4];
      ad_dtype dtype = through_master ? master->dtype : w->s->param;
      ad_cast(value, dtype, &want, AD_F64, 1);
      ad_cast(&want, AD_F64, value, dtype, 1);
      ad_cast(&found, AD_F64, (const char *)master->data + i * ad_dtype_size(master->dtype), master->dtype, 1);
      CHECK(found == want);
    }
  }
}

static int gather(ad_comm *comm, void *context) {
  world w;
  open_world(&w, comm, context);
  write_values(&w, 0, 0);
  CHECK_OK(ad_store_refresh(w.store, AD_VALUES_WRITTEN));
  for (int version = 0; version < 3; version++) {
    run_passes(&w, version, version > 0);
    check_masters(&w, version, version > 0);
    write_values(&w, version + 1, 1);
    CHECK_OK(ad_store_refresh(w.store, AD_MASTERS_WRITTEN));
  }
  close_world(&w);
  return 0;
}

static const setting settings[] = {
    {"dp_replicate=2 dp_shard=2", 4, AD_F32, AD_F32, 0, 0, 0, 0},
    {"dp_replicate=2 dp_shard=2", 4, AD_BF16, AD_F32, 1, 1, 0, 0},
    {"dp_replicate=3 dp_shard=2", 6, AD_F64, AD_F64, 1, 2, 0, 0},
    {"dp_replicate=1 dp_shard=4", 4, AD_F16, AD_F32, 1, 0, 0, 0},
    {"dp_replicate=1 dp_shard=4", 4, AD_F32, AD_F64, 1, 3, 1, 0},
    {"dp_replicate=4 dp_shard=1", 4, AD_BF16, AD_F32, 0, 1, 0, 0},
    {"dp_replicate=4 dp_shard=1", 4, AD_F32, AD_F32, 1, 1, 0, 0},
    {"dp_shard=2 tp=2", 4, AD_BF16, AD_F32, 1, 1, 0, 0},
    {"dp_shard=2 tp=2", 4, AD_F32, AD_F32, 0, 0, 1, 0},
    {"dp_shard=3", 3, AD_BF16, AD_F32, 1, 1, 1, 0},
    {"dp_shard=5", 5, AD_F32, AD_F32, 1, 4, 0, 0}, /* all units are gathered when a pass begins */
    {"dp_shard=1", 1, AD_BF16, AD_F32, 1, 1, 0, 0},
    {"dp_replicate=2 dp_shard=2", 4, AD_F32, AD_F32, 0, 0, 0, 1},
    {"dp_replicate=3 dp_shard=2", 6, AD_BF16, AD_F32, 1, 1, 0, 1},
    {"dp_replicate=2 dp_shard=3", 6, AD_F64, AD_F64, 1, 0, 0, 1},
    {"dp_shard=2 dp_replicate=3", 6, AD_F16, AD_F32, 0, 0, 1, 1},
    {"dp_replicate=3", 3, AD_F32, AD_F32, 1, 1, 0, 1}, /* dp_shard has one rank */
    {"dp_replicate=2 dp_shard=2 tp=2", 8, AD_BF16, AD_F32, 1, 1, 0, 1},
};

static void a_parameter_that_is_acquired_is_full(void **state) {
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
    setting s = settings[i];
    run_ranks(s.ranks, gather, &s);
  }
}

/* Backend hostile fills a copy with NaN when it is released. */
static void nothing_of_a_released_copy_is_used(void **state) {
  setenv("ADDEND_HOSTILE", "5", 1);
  for (size_t i = 1; i < sizeof settings / sizeof *settings; i += 3) {
    setting s = settings[i];
    run_ranks(s.ranks, gather, &s);
  }
  unsetenv("ADDEND_HOSTILE");
}

/* The elements of copies that one rank counts: if all ranks share the copies, its part of `whole`; otherwise `whole`
 * and the shard that it sends (about half: dp_shard is 2). */
static void check_copies(const world *w, size_t whole) {
  ad_group everyone = ad_mesh_group(w->mesh, AD_AXES_ALL, ad_comm_rank(w->comm));
  size_t elements = ad_store_gathered_bytes(w->store) / 4, members = (size_t)ad_group_size(&everyone);
  int shared = ad_comm_shares(w->comm, &everyone);
  size_t least = shared ? whole / members : whole + whole / 2 - 15;
  CHECK(elements >= least && elements <= (shared ? least + 4 : whole + whole / 2 + 15));
}

static int count_bytes(ad_comm *comm, void *context) {
  const setting *s = context;
  world w;
  open_world(&w, comm, s);
  // The units' elements: a, b and g together 30, c and d 25, e none, f 18.
  check_copies(&w, s->releases ? 3 * 30 : 30 + 25 + 0 + 18);
  CHECK(ad_store_bytes(w.store) <= 6 * (73 / 2 + 5) && ad_store_bytes(w.store) >= 6 * (73 / 2 - 5));
  close_world(&w);
  return 0;
}

static void a_rank_bears_its_share_of_the_node(void **state) {
  setting s = {"dp_replicate=2 dp_shard=2", 4, AD_BF16, AD_F32, 1, 1, 0, 0};
  run_ranks(4, count_bytes, &s);
  s.releases = 0;
  run_ranks(4, count_bytes, &s);
}

/* The bytes that a store has from its comm are those that a plan counts: values, masters of another dtype, and memory
 * for the largest parts that are sent. */
static int count_parts(ad_comm *comm, void *context) {
  const setting *s = context;
  world w, dry;
  ad_comm *dry_comm;
  size_t value = ad_dtype_size(s->param), bytes = 0, most = 0, sent[PARAMS] = {0};
  open_world(&w, comm, s);
  CHECK_OK(ad_comm_open_dry(ad_comm_rank(comm), ad_comm_size(comm), &dry_comm));
  open_world(&dry, dry_comm, s);
  for (int p = 0; p < PARAMS; p++) {
    size_t own = ad_array_numel(ad_store_master(w.store, (size_t)p)), *of_unit = &sent[p == 6 ? 0 : units[p] / 3];
    if (p != 3) *of_unit += own * value;
    if (*of_unit > most) most = *of_unit;
    bytes += ad_array_numel(ad_store_value(w.store, (size_t)p)) * value;
    if (s->param == AD_BF16) bytes += own * sizeof(float);
  }
  CHECK(ad_store_bytes(w.store) == bytes + most && ad_store_bytes(dry.store) == bytes + most);
  CHECK(ad_store_gathered_bytes(w.store) == ad_store_gathered_bytes(dry.store) || ad_comm_size(comm) > 1);
  close_world(&dry);
  ad_comm_close(dry_comm);
  close_world(&w);
  return 0;
}

static void memory_of_values_that_are_updated_in_parts_is_planned_exactly(void **state) {
  setting s = {"dp_replicate=3 dp_shard=2", 6, AD_BF16, AD_F32, 1, 1, 0, 1};
  run_ranks(6, count_parts, &s);
  s.param = AD_F32; /* masters lie in the values */
  run_ranks(6, count_parts, &s);
}

static int refuses_updates(ad_comm *comm, void *context) {
  static const char *const updates[] = {
      "dp_replicate=S0 dp_shard=S0", /* dp_replicate outside */
      "dp_replicate=S1 dp_shard=S0", /* columns */
      "dp_replicate=I dp_shard=S0",  /* not sharded, and not as stored */
      "dp_replicate=S0 dp_shard=R",  /* not inside the shards that are stored */
  };
  const setting *s = context;
  world w = {.comm = comm, .s = s};
  CHECK_OK(ad_mesh_create(s->mesh, &w.mesh));
  for (size_t i = 0; i < sizeof updates / sizeof *updates; i++) {
    describe(&w);
    CHECK_OK(ad_layout_parse(w.mesh, updates[i], &w.specs[0].update));
    CHECK_STATUS(ad_store_create(comm, w.specs, PARAMS, NULL, &w.store), AD_INVALID);
    CHECK_SAYS("a", updates[i], "dp_replicate=R dp_shard=S0", "S0");
  }
  ad_mesh_destroy(w.mesh);
  return 0;
}

static void updates_that_no_gather_joins_are_refused(void **state) {
  setting s = {"dp_replicate=2 dp_shard=2", 4, AD_F32, AD_F32, 0, 0, 0, 0};
  run_ranks(4, refuses_updates, &s);
}

static int misuse(ad_comm *comm, void *context) {
  world w;
  open_world(&w, comm, context);
  CHECK_STATUS(ad_store_end_pass(w.store), AD_INVALID);
  CHECK_OK(ad_store_begin_pass(w.store, AD_FORWARD));
  CHECK_STATUS(ad_store_begin_pass(w.store, AD_FORWARD), AD_INVALID);
  CHECK_STATUS(ad_store_refresh(w.store, AD_VALUES_WRITTEN), AD_INVALID);
  CHECK_OK(ad_store_acquire(w.store, 0));
  CHECK_OK(ad_store_acquire(w.store, 2));
  CHECK_STATUS(ad_store_acquire(w.store, 5), AD_INVALID);
  CHECK_SAYS("2");
  CHECK(!ad_store_value(w.store, SIZE_MAX) && !ad_store_master(w.store, SIZE_MAX) &&
        !ad_store_compute(w.store, SIZE_MAX));
  ad_store_release(w.store, SIZE_MAX);
  CHECK_SAYS("ad_store_release");
  close_world(&w);
  return 0;
}

static void misuse_is_refused(void **state) {
  setting s = {"dp_shard=2", 2, AD_F32, AD_F32, 1, 0, 0, 0};
  run_ranks(2, misuse, &s);
}

static int fail_each_allocation(ad_comm *comm, void *context) {
  world w = {.comm = comm, .s = context};
  CHECK_OK(ad_mesh_create(w.s->mesh, &w.mesh));
  describe(&w);
  ad_store_options options = {.size = sizeof options, .releases = 1};
  ad_status status = AD_MEMORY;
  for (long n = 1; status; n++) {
    ad_memory_fail_at(n);
    status = ad_store_create(comm, w.specs, PARAMS, &options, &w.store);
    CHECK(reports_allocation(n, status));
    CHECK(n < 500);
  }
  close_world(&w);
  return 0;
}

static void a_failed_allocation_leaves_nothing_behind(void **state) {
  setting s = {"dp_shard=1", 1, AD_BF16, AD_F32, 1, 0, 0, 0};
  run_ranks(1, fail_each_allocation, &s);
  s.parts = 1;
  run_ranks(1, fail_each_allocation, &s);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_parameter_that_is_acquired_is_full),
      cmocka_unit_test(nothing_of_a_released_copy_is_used),
      cmocka_unit_test(a_rank_bears_its_share_of_the_node),
      cmocka_unit_test(misuse_is_refused),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
      cmocka_unit_test(memory_of_values_that_are_updated_in_parts_is_planned_exactly),
      cmocka_unit_test(updates_that_no_gather_joins_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
