/* Tests exact sums of squares: they have the same bits however many ranks share the arrays' rows. Messages, and the
 * behaviour that these sums share with sums in f64, are tested in test_arrays.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "addend/array.h"
#include "addend/helpers.h"
#include "array/array.h"
#include "ranks.h"

/* The arrays: rows shorter and longer than a block that is cast together, fewer rows than ranks, rows of one element,
 * no row, a scalar, and an array with a scale. */
static const struct {
  ad_dtype dtype;
  int scale;
  ad_shape shape;
} specs[] = {{AD_F32, 0, {2, {64, 33}}}, {AD_F64, 0, {2, {17, 700}}},  {AD_F32, 0, {1, {1000}}},
             {AD_BF16, 0, {2, {4, 9}}},  {AD_F16, 3, {3, {13, 3, 2}}}, {AD_F64, 0, {2, {0, 5}}},
             {AD_F64, 0, {0, {0}}},      {AD_F32, 0, {2, {1, 1200}}}};
enum { ARRAYS = sizeof specs / sizeof *specs };

/* Makes a full array on each rank. Its elements have very different magnitudes, so that f64 sums of their squares
 * depend on the order of additions. */
static ad_array full_array(ad_comm *comm, const ad_mesh *mesh, int i) {
  ad_array full;
  ad_layout layout = ad_layout_all(mesh, AD_R);
  CHECK_OK(ad_array_create(comm, specs[i].dtype, &specs[i].shape, &layout, &full));
  full.scale = specs[i].scale;
  for (size_t e = 0; e < ad_array_numel(&full); e++)
    ad_array_set(&full, e, ldexp(ad_random_uniform(1, (uint64_t)i, e) - 0.5, (int)(e % 7)));
  return full;
}

/* Adds the squares of a full array as the library should: in f64 within each row, and exactly over rows. */
static void add_expected(const ad_array *full, ad_exact *sum) {
  size_t numel = ad_array_numel(full), row = full->shape.ndim && numel ? numel / (size_t)full->shape.dim[0] : 1;
  for (size_t first = 0; first < numel; first += row) {
    double squares = 0;
    for (size_t e = first; e < first + row; e++) squares += ad_array_get(full, e) * ad_array_get(full, e);
    ad_exact_add(sum, squares * exp2(2 * full->scale));
  }
}

static int is_value(const ad_exact *sum, const ad_exact *expected) {
  double have = ad_exact_value(sum), want = ad_exact_value(expected);
  return !memcmp(&have, &want, sizeof have);
}

/* This rank's rows of each array on a mesh, and what the sums of their squares should be. */
typedef struct shared {
  ad_array parts[ARRAYS];
  const ad_array *pointers[ARRAYS];
  /* for each array, the index of the sum that it is added to; no array is added to the sum between two runs of
   * arrays */
  size_t places[ARRAYS];
  ad_exact expected[ARRAYS], of_all;
} shared;
enum { GAP = 3, SUMS = ARRAYS + 1 };

static void share(ad_comm *comm, const ad_mesh *mesh, shared *out) {
  memset(out, 0, sizeof *out);
  for (int i = 0; i < ARRAYS; i++) {
    ad_array full = full_array(comm, mesh, i);
    ad_layout layout = full.layout;
    if (specs[i].shape.ndim) ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_S(0));
    CHECK_OK(ad_array_create(comm, full.dtype, &full.shape, &layout, &out->parts[i]));
    out->parts[i].scale = full.scale;
    CHECK_OK(ad_array_from_full(comm, &full, &out->parts[i]));
    add_expected(&full, &out->expected[i]);
    add_expected(&full, &out->of_all);
    out->pointers[i] = &out->parts[i];
    out->places[i] = (size_t)i + (i >= GAP);
    ad_array_destroy(comm, &full);
  }
}

static void unshare(ad_comm *comm, shared *arrays) {
  for (int i = 0; i < ARRAYS; i++) ad_array_destroy(comm, &arrays->parts[i]);
}

/* Returns for how many of the arrays a sum in f64 on each rank, which depends on the sharding, differs from the exact
 * sum. */
static int differ_by_shard(ad_comm *comm, const ad_group *all, const shared *arrays) {
  double sums[SUMS];
  int differ = 0;
  CHECK_OK(ad_square_sums(comm, all, arrays->pointers, NULL, ARRAYS, AD_HERE, sums, arrays->places, SUMS));
  for (int i = 0; i < ARRAYS; i++) {
    double expected = ad_exact_value(&arrays->expected[i]);
    CHECK(fabs(sums[arrays->places[i]] - expected) <= 1e-12 * expected);
    differ += sums[arrays->places[i]] != expected;
  }
  return differ;
}

static int sum_on_mesh(ad_comm *comm, void *context) {
  static shared arrays;
  static ad_exact sums[SUMS];
  static const ad_exact empty;
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create(context, &mesh));
  share(comm, mesh, &arrays);
  ad_group all = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_exact_square_sums(comm, &all, arrays.pointers, NULL, ARRAYS, AD_HERE, sums, arrays.places, SUMS));
  for (int i = 0; i < ARRAYS; i++) CHECK(is_value(&sums[arrays.places[i]], &arrays.expected[i]));
  CHECK(is_value(&sums[GAP], &empty));
  CHECK_OK(ad_exact_square_sums(comm, &all, arrays.pointers, NULL, ARRAYS, AD_HERE, sums, NULL, 1));
  CHECK(is_value(sums, &arrays.of_all));
  CHECK(differ_by_shard(comm, &all, &arrays) > 0);
  unshare(comm, &arrays);
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_sum_has_the_same_bits_on_any_number_of_ranks(void **state) {
  static const struct {
    int ranks;
    const char *mesh;
  } worlds[] = {{1, "dp_shard=1"},
                {2, "dp_shard=2"},
                {3, "dp_shard=3"},
                {5, "dp_shard=5"},
                {6, "dp_shard=6"},
                {6, "dp_replicate=2 dp_shard=3"},
                {6, "dp_replicate=3 dp_shard=2"},
                {3, "dp_replicate=3 dp_shard=1"}};
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++)
    run_ranks(worlds[i].ranks, sum_on_mesh, (void *)(uintptr_t)worlds[i].mesh);
}

/* The arrays lie on some of the ranks; the other ranks have only descriptions of them. */
static int sum_on_a_pool(ad_comm *comm, void *context) {
  static shared arrays;
  static ad_exact sums[SUMS];
  ad_mesh *world, *pool;
  CHECK_OK(ad_mesh_create("dp_shard=5", &world));
  CHECK_OK(ad_mesh_create_pool("dp_replicate=2 dp_shard=2", 1, &pool));
  int on_pool = ad_comm_rank(comm) > 0;
  share(comm, on_pool ? pool : world, &arrays);
  if (!on_pool) {
    for (int i = 0; i < ARRAYS; i++) {
      ad_array_destroy(comm, &arrays.parts[i]);
      arrays.parts[i].layout.mesh = pool;
    }
  }
  ad_group all = ad_mesh_group(world, AD_AXES_ALL, ad_comm_rank(comm));
  CHECK_OK(ad_exact_square_sums(comm, &all, arrays.pointers, NULL, ARRAYS, AD_HERE, sums, arrays.places, SUMS));
  for (int i = 0; i < ARRAYS; i++) CHECK(is_value(&sums[arrays.places[i]], &arrays.expected[i]));
  if (on_pool) unshare(comm, &arrays);
  ad_mesh_destroy(pool);
  ad_mesh_destroy(world);
  return 0;
}

static void ranks_without_the_arrays_have_the_same_sums(void **state) { run_ranks(5, sum_on_a_pool, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sum_has_the_same_bits_on_any_number_of_ranks),
      cmocka_unit_test(ranks_without_the_arrays_have_the_same_sums),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
