/* Tests ad_array: arrays accumulate only if layout, scale and dtype agree (law 6, like adds to like), transitions can
 * be posted and waited for, full values can be gathered, and norms count every element once. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include "allocations.h"
#include "values.h"
#include "array/array.h"
#include "base/injection.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "ranks.h"
#include "says.h"

/* ---- law 6 (like adds to like) on backend dry, since adding arrays is local ---- */

typedef struct fixture {
  ad_comm *comm;
  ad_mesh *mesh;
  double a[12], b[12];
} fixture;

static int open_fixture(void **state) {
  static fixture f;
  f = (fixture){0};
  if (ad_mesh_create("dp_replicate=2 dp_shard=2", &f.mesh) || ad_comm_open_dry(0, 4, &f.comm)) return -1;
  for (int i = 0; i < 12; i++) f.b[i] = i;
  *state = &f;
  return 0;
}

static int close_fixture(void **state) {
  fixture *f = *state;
  ad_comm_close(f->comm);
  ad_mesh_destroy(f->mesh);
  return 0;
}

static ad_array described(const fixture *f, const char *layout_text, void *data) {
  ad_shape shape = {2, {3, 4}};
  ad_layout layout;
  assert_int_equal(ad_layout_parse(f->mesh, layout_text, &layout), AD_OK);
  ad_array array = ad_array_describe(f->comm, AD_F64, &shape, &layout);
  array.data = data;
  return array;
}

static void like_adds_to_like(void **state) {
  fixture *f = *state;
  ad_array to = described(f, "dp=P", f->a), from = described(f, "dp=P", f->b);
  assert_int_equal(ad_array_add(&to, &from), AD_OK);
  assert_int_equal(ad_array_add(&to, &from), AD_OK);
  for (int i = 0; i < 12; i++) assert_true(f->a[i] == 2.0 * i);
}

static void a_partial_never_adds_to_a_sum(void **state) {
  fixture *f = *state;
  ad_array sum = described(f, "dp=R", f->a), partial = described(f, "dp=P", f->b);
  ad_array half = described(f, "dp_replicate=P dp_shard=R", f->b);
  assert_int_equal(ad_array_add(&sum, &partial), AD_TYPE);
  assert_says("test_arrays.c");
  assert_int_equal(ad_array_add(&partial, &sum), AD_TYPE);
  assert_int_equal(ad_array_add(&half, &partial), AD_TYPE);
  assert_int_equal(ad_array_add(&sum, &half), AD_TYPE);
  for (int i = 0; i < 12; i++) assert_true(f->a[i] == 0 && f->b[i] == i);
}

static void unequal_scales_never_meet(void **state) {
  fixture *f = *state;
  ad_array to = described(f, "dp=P", f->a), from = described(f, "dp=P", f->b);
  from.scale = 3;
  assert_int_equal(ad_array_add(&to, &from), AD_TYPE);
  assert_says("2", "-3");
  assert_true(f->a[1] == 0);
}

static void unequal_shapes_do_not_add(void **state) {
  fixture *f = *state;
  ad_array to = described(f, "dp=P", f->a), from = described(f, "dp=P", f->b);
  from.shape.dim[0] = from.local.dim[0] = 4;
  assert_int_equal(ad_array_add(&to, &from), AD_INVALID);
}

static void a_rank_off_the_mesh_is_refused(void **state) {
  fixture *f = *state;
  ad_mesh *pool;
  assert_int_equal(ad_mesh_create_pool("tp=2", 2, &pool), AD_OK);
  ad_layout layout = ad_layout_all(pool, AD_R);
  ad_shape shape = {1, {4}};
  ad_array array;
  assert_int_equal(ad_array_create(f->comm, AD_F64, &shape, &layout, &array), AD_INVALID);
  assert_says("rank 0");
  ad_mesh_destroy(pool);
}

#define refused(status, ...) (assert_int_equal((status), AD_INVALID), assert_says(__VA_ARGS__))

static void dtypes_of_collectives_alone_are_no_arrays(void **state) {
  fixture *f = *state;
  ad_group all = ad_mesh_group(f->mesh, AD_AXES_ALL, 0);
  for (ad_dtype dtype = AD_U8; dtype <= AD_BOOL; dtype++) {
    const char *name = ad_dtype_name(dtype);
    ad_array array = described(f, "dp=P", f->a), made, out = described(f, "dp=R", f->b);
    const ad_array *arrays[] = {&array};
    double sum;
    ad_request request;
    array.dtype = out.dtype = dtype;
    refused(ad_array_create(f->comm, dtype, &array.shape, &array.layout, &made), name, "ad_comm_run");
    refused(ad_array_move(f->comm, &array, AD_MOVE_ALL_REDUCE, AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD), AD_R, 0,
                          &out),
            name, "ad_comm_run");
    refused(ad_array_post(f->comm, &array, AD_MOVE_ALL_REDUCE, AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD), AD_R, 0,
                          &out, &request),
            name, "ad_comm_run");
    refused(ad_array_full(f->comm, &array, &made), name, "ad_comm_run");
    refused(ad_array_square_sum(f->comm, &all, arrays, 1, &sum), name, "ad_comm_run");
    refused(ad_array_add(&array, &array), name, "f64", "f32", "bf16", "f16");
    assert_true(isnan(ad_array_get(&array, 0)));
    array.dtype = AD_F64;
    refused(ad_array_move(f->comm, &array, AD_MOVE_ALL_REDUCE, AD_AXES(AD_DP_REPLICATE) | AD_AXES(AD_DP_SHARD), AD_R, 0,
                          &out),
            name, "ad_comm_run");
    assert_true(f->a[0] == 0 && f->b[11] == 11);
  }
}

static void whole_numbers_are_not_added(void **state) {
  fixture *f = *state;
  ad_array to = described(f, "dp=P", f->a), from = described(f, "dp=P", f->b);
  to.dtype = from.dtype = AD_I64;
  refused(ad_array_add(&to, &from), "i64", "f64", "bf16");
  to.dtype = AD_F64;
  from.dtype = AD_I32;
  refused(ad_array_add(&to, &from), "i32", "f64", "bf16");
}

/* ---- transitions that are posted and waited for ---- */

static void post_and_compare(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to) {
  ad_array run, posted;
  ad_request request;
  CHECK_OK(ad_array_after(comm, in, move, axes, to, &run));
  CHECK_OK(ad_array_create(comm, in->dtype, &run.shape, &run.layout, &posted));
  CHECK_OK(ad_array_create(comm, in->dtype, &run.shape, &run.layout, &run));
  CHECK_OK(ad_array_move(comm, in, move, axes, to, 0, &run));
  CHECK_OK(ad_array_post(comm, in, move, axes, to, 0, &posted, &request));
  CHECK_OK(ad_comm_wait(comm, &request));
  CHECK(!memcmp(run.data, posted.data, ad_array_bytes(&run)));
  ad_array_destroy(comm, &run);
  ad_array_destroy(comm, &posted);
}

static int post_moves(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_shape shape = {2, {7, 3}};
  ad_array partial, sharded, out;
  ad_request request;
  ad_axes tp = AD_AXES(AD_TP);
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_P);
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &partial));
  fill_value(comm, &partial, 5);
  ad_layout_set(&layout, tp, AD_S(0));
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &sharded));
  fill_value(comm, &sharded, 6);
  post_and_compare(comm, &partial, AD_MOVE_ALL_REDUCE, tp, AD_R);
  post_and_compare(comm, &partial, AD_MOVE_REDUCE_SCATTER, tp, AD_S(0));
  post_and_compare(comm, &sharded, AD_MOVE_ALL_GATHER, tp, AD_R);
  CHECK_OK(ad_array_after(comm, &partial, AD_MOVE_REDUCE_SCATTER, tp, AD_S(1), &out));
  out.data = sharded.data;
  CHECK(ad_array_post(comm, &partial, AD_MOVE_REDUCE_SCATTER, tp, AD_S(1), 0, &out, &request) == AD_INVALID);
  CHECK_OK(ad_array_after(comm, &sharded, AD_MOVE_CONVERT, tp, AD_P, &out));
  out.data = partial.data;
  CHECK(ad_array_post(comm, &sharded, AD_MOVE_CONVERT, tp, AD_P, 0, &out, &request) == AD_INVALID);
  ad_array_destroy(comm, &partial);
  ad_array_destroy(comm, &sharded);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_posted_move_gives_the_same_bits(void **state) { run_ranks(3, post_moves, NULL); }

/* ---- transitions in place ---- */

static int move_in_place(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_shape shape = {2, {6, 2}};
  ad_array sharded, apart, in_place;
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), AD_S(0));
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &sharded));
  fill_value(comm, &sharded, 7);
  CHECK_OK(ad_array_after(comm, &sharded, AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S_ZIGZAG(0), &in_place));
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &in_place.layout, &apart));
  CHECK_OK(ad_array_move(comm, &sharded, AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S_ZIGZAG(0), 0, &apart));
  in_place.data = sharded.data;
  CHECK_OK(ad_array_move(comm, &sharded, AD_MOVE_ALL_TO_ALL, AD_AXES(AD_TP), AD_S_ZIGZAG(0), 0, &in_place));
  CHECK(!memcmp(apart.data, in_place.data, ad_array_bytes(&apart)));
  ad_array_destroy(comm, &sharded);
  ad_array_destroy(comm, &apart);
  ad_mesh_destroy(mesh);
  return 0;
}

static void equal_parts_may_move_in_place(void **state) { run_ranks(3, move_in_place, NULL); }

/* ---- the norm ---- */

static double square_sum_of_full(ad_comm *comm, const ad_array *array) {
  ad_layout uncut = ad_layout_all(array->layout.mesh, AD_R);
  ad_array full;
  double sum = 0;
  CHECK_OK(ad_array_create(comm, array->dtype, &array->shape, &uncut, &full));
  CHECK_OK(ad_array_full(comm, array, &full));
  for (size_t i = 0; i < ad_array_numel(&full); i++) {
    double value = array->dtype == AD_F64 ? ((double *)full.data)[i] : (double)((float *)full.data)[i];
    sum += value * value;
  }
  ad_array_destroy(comm, &full);
  return sum;
}

static void check_same_on_all(ad_comm *comm, const ad_group *group, double value) {
  double most = value, least = -value;
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_REDUCE,
                        .group = *group,
                        .in = &most,
                        .out = &most,
                        .count = 1,
                        .dtype = AD_F64};
  call.reduction = AD_MAX;
  call.site = AD_HERE;
  CHECK_OK(ad_comm_run(comm, &call));
  call.in = call.out = &least;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK(most == -least);
}

static int norms(ad_comm *comm, void *context) {
  static const char *const layouts[] = {"dp=R tp=S0", "dp=I tp=S1", "dp=S0 tp=I", "dp_replicate=R dp_shard=S1 tp=S1",
                                        "dp=R tp=R"};
  enum { COUNT = sizeof layouts / sizeof *layouts };
  ad_mesh *mesh;
  ad_array arrays[COUNT];
  const ad_array *pointers[COUNT];
  double expected = 0, sum;
  CHECK_OK(ad_mesh_create("dp_replicate=1 dp_shard=3 tp=2", &mesh));
  for (int i = 0; i < COUNT; i++) {
    ad_shape shape = {2, {5, 600}};
    ad_layout layout;
    CHECK_OK(ad_layout_parse(mesh, layouts[i], &layout));
    CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &arrays[i]));
    fill_value(comm, &arrays[i], (uint64_t)i);
    pointers[i] = &arrays[i];
    expected += square_sum_of_full(comm, &arrays[i]);
  }
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_array_square_sum(comm, &all, pointers, COUNT, &sum));
  CHECK(fabs(sum - expected) <= 1e-12 * expected);
  check_same_on_all(comm, &all, sum);
  arrays[0].layout = ad_layout_all(mesh, AD_P);
  arrays[0].local = arrays[0].shape;
  CHECK(ad_array_square_sum(comm, &all, pointers, COUNT, &sum) == AD_TYPE);
  for (int i = 0; i < COUNT; i++) ad_array_destroy(comm, &arrays[i]);
  ad_mesh_destroy(mesh);
  return 0;
}

static void the_norm_counts_every_distinct_element_once(void **state) { run_ranks(6, norms, NULL); }

static int scaled_norm(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_shape shape = {1, {4}};
  double sum;
  CHECK_OK(ad_mesh_create("tp=1", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_array array;
  const ad_array *pointer = &array;
  CHECK_OK(ad_array_create(comm, AD_F16, &shape, &layout, &array));
  double values[] = {1, 2, 3, 4};
  ad_cast(array.data, AD_F16, values, AD_F64, 4);
  array.scale = 2;
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, 0);
  CHECK_OK(ad_array_square_sum(comm, &all, &pointer, 1, &sum));
  CHECK(sum == 30 * 16);
  ad_array_destroy(comm, &array);
  ad_mesh_destroy(mesh);
  return 0;
}

static void the_norm_undoes_the_scale(void **state) { run_ranks(1, scaled_norm, NULL); }

/* Two pools, each with its own value. A rank of the other pool has the value's description, or NULL. */
static int norm_of_pools(ad_comm *comm, void *context) {
  int64_t rank = ad_comm_rank(comm);
  ad_mesh *world, *pools[2];
  ad_shape shape = {2, {5, 3}};
  double expected[2] = {0}, sum;
  CHECK_OK(ad_mesh_create("dp_shard=6", &world));
  CHECK_OK(ad_mesh_create_pool("dp_shard=2", 0, &pools[0]));
  CHECK_OK(ad_mesh_create_pool("dp_shard=2 tp=2", 2, &pools[1]));
  int own = rank >= 2;
  ad_layout layouts[2] = {ad_layout_all(pools[0], AD_R), ad_layout_all(pools[1], AD_R)};
  ad_layout_set(&layouts[1], AD_AXES(AD_TP), AD_S(0));
  ad_array arrays[2] = {{.dtype = AD_F64, .shape = shape, .layout = layouts[0]},
                        {.dtype = AD_F64, .shape = shape, .layout = layouts[1]}};
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layouts[own], &arrays[own]));
  fill_value(comm, &arrays[own], 4);
  ad_group all = ad_mesh_group(world, AD_AXES_ALL, rank), pool = ad_mesh_group(pools[own], AD_AXES_ALL, rank);
  const ad_array *pointers[] = {&arrays[0], &arrays[1]};
  CHECK_OK(ad_array_square_sum(comm, &pool, &pointers[own], 1, &sum));
  expected[own] = ad_group_index(&pool, rank) == 0 ? sum : 0;
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .group = all, .in = expected, .out = expected, .count = 2};
  call.dtype = AD_F64;
  CHECK_OK(ad_comm_run(comm, &call));
  CHECK_OK(ad_array_square_sum(comm, &all, pointers, 2, &sum));
  CHECK(fabs(sum - expected[0] - expected[1]) <= 1e-12 * sum && expected[0] > 0 && expected[1] > 0);
  check_same_on_all(comm, &all, sum);
  // A group that does not contain the whole pool cannot know which of its ranks have replicas.
  ad_group alone = ad_mesh_group(world, 0, rank);
  CHECK_STATUS(ad_array_square_sum(comm, &alone, &pointers[own], 1, &sum), AD_INVALID);
  CHECK_SAYS("dp_shard=6", own ? "dp_shard=2 tp=2" : "dp_shard=2");
  ad_array_destroy(comm, &arrays[own]);
  ad_mesh_destroy(pools[0]);
  ad_mesh_destroy(pools[1]);
  ad_mesh_destroy(world);
  return 0;
}

/* Computes several sums in one call: each sum counts only its own arrays, and its bits are the same whether or not
 * arrays of the other pool are listed in between. */
static int sums_of_pools(ad_comm *comm, void *context) {
  enum { OWN = 16, ARRAYS = 2 * OWN };
  int64_t rank = ad_comm_rank(comm);
  ad_mesh *world, *pools[2];
  CHECK_OK(ad_mesh_create("dp_shard=8", &world));
  CHECK_OK(ad_mesh_create_pool("dp_shard=3", 0, &pools[0]));
  CHECK_OK(ad_mesh_create_pool("dp_shard=5", 3, &pools[1]));
  int own = rank >= 3;
  ad_array arrays[ARRAYS];
  const ad_array *all[ARRAYS], *here[OWN];
  for (int i = 0; i < ARRAYS; i++) {  // arrays of pool 0 and of pool 1 alternate
    ad_shape shape = {2, {17 + 4 * i, 3}};
    ad_layout layout = ad_layout_all(pools[i % 2], AD_R);
    ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
    arrays[i] = (ad_array){.dtype = AD_F64, .shape = shape, .layout = layout};
    all[i] = &arrays[i];
    if (i % 2 != own) continue;
    CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &arrays[i]));
    for (size_t e = 0; e < ad_array_numel(&arrays[i]); e++)
      ad_array_set(&arrays[i], e, ad_random_uniform(7, (uint64_t)rank, (uint64_t)i * 1000 + e));
    here[i / 2] = &arrays[i];
  }
  ad_group everyone = ad_mesh_group(world, AD_AXES_ALL, rank), pool = ad_mesh_group(pools[own], AD_AXES_ALL, rank);
  // Array i adds to sum 2 i; no array adds to the sums between.
  double together[2 * ARRAYS], alone[2 * OWN], sum, added = 0;
  size_t places[ARRAYS];
  for (size_t i = 0; i < ARRAYS; i++) places[i] = 2 * i;
  CHECK_OK(ad_square_sums(comm, &everyone, all, NULL, ARRAYS, AD_HERE, together, places, 2 * ARRAYS));
  CHECK_OK(ad_square_sums(comm, &pool, here, NULL, OWN, AD_HERE, alone, places, 2 * OWN));
  for (int k = 0; k < OWN; k++) {
    double counted = alone[2 * k];
    CHECK(counted > 0 && together[2 * (2 * k + own)] == counted && together[2 * k + 1] == 0 && alone[2 * k + 1] == 0);
    added += counted;
  }
  for (int i = 0; i < ARRAYS; i++) check_same_on_all(comm, &everyone, together[2 * i]);
  CHECK_OK(ad_array_square_sum(comm, &pool, here, OWN, &sum));
  CHECK(fabs(sum - added) <= 1e-14 * sum);
  for (int i = 0; i < ARRAYS; i++)
    if (i % 2 == own) ad_array_destroy(comm, &arrays[i]);
  for (int i = 0; i < 2; i++) ad_mesh_destroy(pools[i]);
  ad_mesh_destroy(world);
  return 0;
}

static void ranks_off_a_mesh_count_nothing_of_it(void **state) { run_ranks(6, norm_of_pools, NULL); }
static void a_sum_has_the_same_bits_with_other_ranks(void **state) { run_ranks(8, sums_of_pools, NULL); }

static void count_call(void *context, void *passing) {
  (void)passing;
  ++*(int *)context;
}

/* The norm over a group of dp_shard: replicas on dp_replicate are in other groups, and count in those. Over a group of
 * all ranks of the mesh each element counts once. */
static int norm_of_a_part_of_the_mesh(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_shape shape = {1, {7}};
  double part, all_of_it;
  CHECK_OK(ad_mesh_create("dp_replicate=2 dp_shard=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
  ad_array array;
  const ad_array *pointer = &array;
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &array));
  fill_value(comm, &array, 4);
  ad_group shard = ad_mesh_group(mesh, AD_AXES(AD_DP_SHARD), ad_comm_rank(comm));
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_array_square_sum(comm, &shard, &pointer, 1, &part));
  int calls = 0;
  ad_injection_set(AD_INJECT_CALL, (ad_injection){count_call, &calls});
  CHECK_OK(ad_array_square_sum(comm, &all, &pointer, 1, &all_of_it));
  ad_injection_set(AD_INJECT_CALL, (ad_injection){0});
  CHECK(part == all_of_it && part > 0);
  CHECK(calls == 1);
  ad_array_destroy(comm, &array);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_norm_over_some_axes_counts_the_replicas_on_others_there(void **state) {
  run_ranks(6, norm_of_a_part_of_the_mesh, NULL);
}

static int refuse_varying(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  ad_shape shape = {1, {4}};
  CHECK_OK(ad_mesh_create("tp=2", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_V);
  double data[4] = {0}, memory[4];
  ad_array array = ad_array_describe(comm, AD_F64, &shape, &layout), out = {.data = memory};
  array.data = data;
  CHECK(ad_array_full(comm, &array, &out) == AD_TYPE);
  CHECK_SAYS("tp", "V");
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_varying_value_has_no_full_value(void **state) { run_ranks(2, refuse_varying, NULL); }

/* ---- a full value and its parts ---- */

/* Element i of a value of 7 x 5 elements. */
static double numbered(size_t i) { return (double)i + 0.5; }

static int full_and_back(ad_comm *comm, void *context) {
  enum { ROWS = 7, COLUMNS = 5, ELEMENTS = ROWS * COLUMNS };
  static const char *const layouts[] = {"dp=R tp=I",  "dp=S0 tp=R", "dp=S1z tp=S0", "dp=S0 tp=S0",
                                        "dp=P tp=S1", "dp=P tp=P",  "dp=S0z tp=P"};
  ad_mesh *mesh;
  ad_shape shape = {2, {ROWS, COLUMNS}};
  double from[ELEMENTS], back[ELEMENTS] = {0};
  for (size_t i = 0; i < ELEMENTS; i++) from[i] = numbered(i);
  CHECK_OK(ad_mesh_create("dp=3 tp=2", &mesh));
  ad_layout everywhere = ad_layout_all(mesh, AD_R);
  ad_array full = ad_array_describe(comm, AD_F64, &shape, &everywhere);
  full.data = from;
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
    ad_layout layout;
    ad_array part, again = {.data = back};
    CHECK_OK(ad_layout_parse(mesh, layouts[i], &layout));
    CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &part));
    CHECK_OK(ad_array_from_full(comm, &full, &part));
    CHECK_OK(ad_array_full(comm, &part, &again));
    for (size_t k = 0; k < ELEMENTS; k++) CHECK(back[k] == numbered(k));
    ad_array_destroy(comm, &part);
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static int refuse_other_full_values(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  double numbers[12] = {0}, kept[6] = {7, 7, 7, 7, 7, 7};
  CHECK_OK(ad_mesh_create("dp=2", &mesh));
  ad_layout everywhere = ad_layout_all(mesh, AD_R), varying = ad_layout_all(mesh, AD_V), rows = everywhere;
  ad_layout_set(&rows, AD_AXES_DP, AD_S(0));
  ad_shape shape = {2, {4, 3}}, other = {2, {3, 4}};
  ad_array full = ad_array_describe(comm, AD_F64, &shape, &everywhere), part;
  full.data = numbers;
  part = ad_array_describe(comm, AD_F64, &shape, &rows);
  part.data = kept;
  ad_array wrong = ad_array_describe(comm, AD_F64, &other, &everywhere), half = part, scaled = full;
  wrong.data = half.data = numbers;
  scaled.scale = 3;
  CHECK(ad_array_from_full(comm, &wrong, &part) == AD_INVALID);
  CHECK_SAYS("[3, 4]", "[4, 3]");
  CHECK(ad_array_from_full(comm, &half, &part) == AD_INVALID);
  CHECK_SAYS("[2, 3]", "[4, 3]");
  CHECK(ad_array_from_full(comm, &scaled, &part) == AD_INVALID);
  CHECK_SAYS("3", "0");
  /* A shard of a larger value has the required local shape but not the full shape; an addend has the required
   * shapes. */
  ad_shape larger = {2, {8, 3}};
  ad_layout partial = ad_layout_all(mesh, AD_P);
  ad_array shard = ad_array_describe(comm, AD_F64, &larger, &rows);
  ad_array addend = ad_array_describe(comm, AD_F64, &shape, &partial);
  shard.data = addend.data = numbers;
  CHECK(ad_array_from_full(comm, &shard, &part) == AD_INVALID);
  CHECK(ad_array_from_full(comm, &addend, &part) == AD_TYPE);
  CHECK_SAYS("P", "dp_shard");
  part.layout = varying;
  part.shape = part.local;
  CHECK(ad_array_from_full(comm, &full, &part) == AD_TYPE);
  CHECK_SAYS("V", "dp_shard");
  for (int i = 0; i < 6; i++) CHECK(kept[i] == 7);
  ad_mesh_destroy(mesh);
  return 0;
}

static void parts_of_a_full_value_make_it_again(void **state) { run_ranks(6, full_and_back, NULL); }
static void a_full_value_of_another_shape_or_scale_is_refused(void **state) {
  run_ranks(2, refuse_other_full_values, NULL);
}

/* ---- full values for ranks that hold no part ---- */

static double at_place(int64_t i) { return ad_random_normal(6, 1, (uint64_t)i); }

/* Fills a value whose rows are sharded over the pool's dp; the pool's other ranks hold replicas. */
static void fill_rows(ad_comm *comm, ad_array *sharded) {
  ad_span rows = {0, 0};
  ad_layout_spans(&sharded->layout, 0, sharded->shape.dim[0], ad_comm_rank(comm), &rows, 1);
  int64_t columns = sharded->shape.dim[1];
  for (int64_t i = 0; i < rows.count * columns; i++) ((double *)sharded->data)[i] = at_place(rows.first * columns + i);
}

/* A pool among other ranks sends them all a full value: its bits, shape, dtype and scale. */
static int report_others(ad_comm *comm, void *context) {
  const char *mesh_text = context;
  ad_mesh *world, *pool;
  ad_array sharded = {0};
  ad_shape shape = {2, {5, 3}};
  double memory[15];
  ad_array full = {.data = memory};
  CHECK_OK(ad_mesh_create("dp=6", &world));
  CHECK_OK(ad_mesh_create_pool(mesh_text, 2, &pool));
  int is_there = ad_mesh_has_rank(pool, ad_comm_rank(comm));
  ad_layout layout = ad_layout_all(pool, AD_R);
  ad_layout_set(&layout, AD_AXES_DP, AD_S(0));
  if (is_there) {
    CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &sharded));
    fill_rows(comm, &sharded);
    sharded.scale = 4;
  } else {
    sharded = ad_array_describe(comm, AD_F64, &shape, &layout);
    CHECK(ad_array_numel(&sharded) == 0);
  }
  ad_group all = ad_mesh_group(world, AD_AXES_ALL, ad_comm_rank(comm));
  /* one of the ranks outside the pool passes a description of the array, another passes NULL */
  int says_it = is_there || ad_comm_rank(comm) % 2;
  CHECK_OK(ad_array_full_for(comm, &all, pool, says_it ? &sharded : NULL, &full));
  CHECK(full.data == memory && ad_shape_equal(&full.shape, &shape) && ad_shape_equal(&full.local, &shape));
  CHECK(full.dtype == AD_F64 && full.scale == 4);
  for (int64_t i = 0; i < 15; i++) CHECK(memory[i] == at_place(i));
  if (is_there) ad_array_destroy(comm, &sharded);
  ad_mesh_destroy(pool);
  ad_mesh_destroy(world);
  return 0;
}

static void ranks_off_a_mesh_get_the_full_value_of_what_lies_on_it(void **state) {
  static char *const pools[] = {"dp=3", "dp=2 tp=2", "tp=4", "dp=1"};
  for (size_t i = 0; i < sizeof pools / sizeof *pools; i++) run_ranks(6, report_others, pools[i]);
}

/* ---- allocations that fail ---- */

static ad_status create_move_destroy(ad_comm *comm, const ad_mesh *mesh) {
  ad_shape shape = {2, {4, 6}};
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), AD_S(1));
  ad_array sharded, full = {0};
  AD_TRY(ad_array_create(comm, AD_F64, &shape, &layout, &sharded));
  ad_layout_set(&layout, AD_AXES(AD_TP), AD_R);
  ad_status status = ad_array_create(comm, AD_F64, &shape, &layout, &full);
  if (!status) status = ad_array_move(comm, &sharded, AD_MOVE_ALL_GATHER, AD_AXES(AD_TP), AD_R, 0, &full);
  if (!status) status = ad_array_full(comm, &sharded, &full);
  ad_array_destroy(comm, &sharded);
  ad_array_destroy(comm, &full);
  return status;
}

static int fail_each_allocation(ad_comm *comm, void *context) {
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("tp=1", &mesh));
  ad_status status = AD_MEMORY;
  for (long n = 1; status && n < 100; n++) {
    ad_memory_fail_at(n);
    status = create_move_destroy(comm, mesh);
    CHECK(reports_allocation(n, status));
  }
  CHECK(!status);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_failed_allocation_leaves_nothing_behind(void **state) { run_ranks(1, fail_each_allocation, NULL); }

/* Transitions along the second dimension pack what they send, what they receive, or both. */
static void move_along_the_second_dimension(ad_comm *comm, const ad_array *partial, ad_array *sharded, ad_array *other,
                                            ad_array *full) {
  ad_axes tp = AD_AXES(AD_TP);
  CHECK_OK(ad_array_move(comm, partial, AD_MOVE_REDUCE_SCATTER, tp, AD_S(1), 0, sharded));
  CHECK_OK(ad_array_move(comm, sharded, AD_MOVE_ALL_TO_ALL, tp, AD_S(0), 0, other));
  CHECK_OK(ad_array_move(comm, sharded, AD_MOVE_ALL_GATHER, tp, AD_R, 0, full));
}

static int count_allocations(ad_comm *comm, void *context) {
  static const ad_type types[] = {AD_P, AD_S(1), AD_S(0), AD_R};
  ad_mesh *mesh;
  ad_shape shape = {2, {5, 8}};
  ad_array arrays[4];
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  for (int i = 0; i < 4; i++) {
    ad_layout layout = ad_layout_all(mesh, AD_R);
    ad_layout_set(&layout, AD_AXES(AD_TP), types[i]);
    CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &arrays[i]));
  }
  move_along_the_second_dimension(comm, &arrays[0], &arrays[1], &arrays[2], &arrays[3]);
  ad_memory_fail_at(0);
  move_along_the_second_dimension(comm, &arrays[0], &arrays[1], &arrays[2], &arrays[3]);
  CHECK(ad_memory_fail_at(0) == 0);
  for (int i = 0; i < 4; i++) ad_array_destroy(comm, &arrays[i]);
  ad_mesh_destroy(mesh);
  return 0;
}

static void moves_no_larger_than_earlier_ones_allocate_nothing(void **state) { run_ranks(3, count_allocations, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(like_adds_to_like, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(a_partial_never_adds_to_a_sum, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(unequal_scales_never_meet, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(unequal_shapes_do_not_add, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(a_rank_off_the_mesh_is_refused, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(dtypes_of_collectives_alone_are_no_arrays, open_fixture, close_fixture),
      cmocka_unit_test_setup_teardown(whole_numbers_are_not_added, open_fixture, close_fixture),
      cmocka_unit_test(a_posted_move_gives_the_same_bits),
      cmocka_unit_test(equal_parts_may_move_in_place),
      cmocka_unit_test(the_norm_counts_every_distinct_element_once),
      cmocka_unit_test(the_norm_undoes_the_scale),
      cmocka_unit_test(ranks_off_a_mesh_count_nothing_of_it),
      cmocka_unit_test(a_sum_has_the_same_bits_with_other_ranks),
      cmocka_unit_test(a_norm_over_some_axes_counts_the_replicas_on_others_there),
      cmocka_unit_test(a_varying_value_has_no_full_value),
      cmocka_unit_test(parts_of_a_full_value_make_it_again),
      cmocka_unit_test(a_full_value_of_another_shape_or_scale_is_refused),
      cmocka_unit_test(ranks_off_a_mesh_get_the_full_value_of_what_lies_on_it),
      cmocka_unit_test(a_failed_allocation_leaves_nothing_behind),
      cmocka_unit_test(moves_no_larger_than_earlier_ones_allocate_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
