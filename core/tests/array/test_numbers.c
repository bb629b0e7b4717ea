/* Tests the numbers that transitions write: a sum undoes its addends' scales, and every element of a result is written,
 * whatever its memory contained before. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "addend/array.h"
#include "array/transit.h"
#include "kernels/kernels.h"
#include "kernels/nodes.h"
#include "ranks.h"

/* ---- scaled f16 ---- */

enum { SCALE = 3, ROWS = 6, ROW = 2, NUMEL = ROWS * ROW };

/* An f16 array whose every element is value times 2^-SCALE. */
static ad_array scaled_values(ad_comm *comm, const ad_layout *layout, double value, uint16_t *memory) {
  ad_array array = ad_array_describe(comm, AD_F16, &(ad_shape){2, {ROWS, ROW}}, layout);
  double numbers[NUMEL];
  for (int i = 0; i < NUMEL; i++) numbers[i] = ldexp(value, -SCALE);
  ad_cast(memory, AD_F16, numbers, AD_F64, NUMEL);
  array.scale = SCALE;
  array.data = memory;
  return array;
}

/* Sums 1, 2 and 3, which the ranks hold scaled, into another dtype with another scale. */
static void sum_scaled(ad_comm *comm, const ad_mesh *mesh, ad_move move, ad_type to, int scale, int posts) {
  ad_layout layout = ad_layout_all(mesh, AD_P);
  uint16_t memory[NUMEL];
  float sums[NUMEL];
  ad_array in = scaled_values(comm, &layout, (double)ad_comm_rank(comm) + 1, memory), out;
  CHECK_OK(ad_array_after(comm, &in, move, AD_AXES(AD_TP), to, &out));
  CHECK(out.scale == SCALE);
  out.dtype = AD_F32;
  out.scale = scale;
  out.data = sums;
  if (posts) {
    ad_request request;
    CHECK_OK(ad_array_post(comm, &in, move, AD_AXES(AD_TP), to, AD_F32, &out, &request));
    CHECK_OK(ad_comm_wait(comm, &request));
  } else {
    CHECK_OK(ad_array_move(comm, &in, move, AD_AXES(AD_TP), to, AD_F32, &out));
  }
  for (size_t i = 0; i < ad_array_numel(&out); i++) CHECK(ldexp(sums[i], scale) == 6);
}

static int sum_scaled_values(ad_comm *comm, void *context) {
  (void)context;
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  for (int scale = 0; scale <= SCALE + 1; scale++)
    for (int posts = 0; posts < 2; posts++) {
      sum_scaled(comm, mesh, AD_MOVE_ALL_REDUCE, AD_R, scale, posts);
      sum_scaled(comm, mesh, AD_MOVE_REDUCE_SCATTER, AD_S(0), scale, posts);
    }
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_sum_reads_its_addends_at_their_scale(void **state) { run_ranks(3, sum_scaled_values, NULL); }

/* ---- sums of leaves ---- */

enum { LEAVES = 8, LEAF_ROWS = 5, LEAF_ROW = 2, SUMS_MAX = 4 };

/* Element e of the sum of leaves [first, first + count). Sums of these whole numbers are exact. */
static float sum_of_leaves(int64_t first, int64_t count, size_t e) {
  float sum = 0;
  for (int64_t leaf = first; leaf < first + count; leaf++) sum += (float)(leaf * leaf + (int64_t)e);
  return sum;
}

/* For each node of the leaves [first, end), one after another, writes `size` elements of the node's sum, from element
 * `at` on; if `checks` is 1, checks them instead. Returns the number of nodes. */
static size_t pass_sums(int64_t first, int64_t end, size_t at, size_t size, float *memory, int checks) {
  ad_node nodes[AD_NODES_MAX];
  size_t count = ad_nodes_of(first, end - first, LEAVES, nodes);
  for (size_t k = 0; k < count; k++)
    for (size_t e = 0; e < size; e++) {
      float sum = sum_of_leaves(nodes[k].first, nodes[k].count, at + e);
      if (!checks) memory[k * size + e] = sum;
      CHECK(memory[k * size + e] == sum);
    }
  return count;
}

static int sum_leaves(ad_comm *comm, void *context) {
  // rank 0 has leaves 1 and 2 (two nodes), rank 1 none, rank 2 leaves 3 to 6 (the nodes [3], [4, 6) and [6])
  const int64_t starts[] = {1, 3, 3, 7};
  const ad_leaf_ranges ranges = {LEAVES, starts};
  int64_t rank = ad_comm_rank(comm);
  ad_mesh *mesh;
  CHECK_OK(ad_mesh_create("dp_shard=3", &mesh));
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_DP_SHARD), AD_P);
  ad_array in = ad_array_describe(comm, AD_F32, &(ad_shape){2, {LEAF_ROWS, LEAF_ROW}}, &layout), out;
  CHECK_OK(ad_comm_alloc(comm, SUMS_MAX * ad_array_bytes(&in), &in.data));
  pass_sums(starts[rank], starts[rank + 1], 0, ad_array_numel(&in), in.data, 0);
  for (int scatters = 0; scatters < 2; scatters++) {
    ad_transit transit = {.move = scatters ? AD_MOVE_REDUCE_SCATTER : AD_MOVE_ALL_REDUCE,
                          .axes = AD_AXES(AD_DP_SHARD),
                          .to = scatters ? AD_S(0) : AD_R,
                          .ranges = &ranges};
    ad_request request;
    CHECK_OK(ad_array_after(comm, &in, transit.move, transit.axes, transit.to, &out));
    CHECK_OK(ad_comm_alloc(comm, SUMS_MAX * ad_array_bytes(&in), &out.data));
    size_t at = scatters ? (size_t)ad_cut(LEAF_ROWS, rank, 3).first * LEAF_ROW : 0;
    CHECK_OK(ad_transit_post(comm, &transit, &in, &out, &request));
    CHECK_OK(ad_comm_wait(comm, &request));
    CHECK(pass_sums(starts[0], starts[3], at, ad_array_numel(&out), out.data, 1) == 4);
    ad_comm_free(comm, out.data);
  }
  ad_transit columns = {.move = AD_MOVE_REDUCE_SCATTER, .axes = AD_AXES(AD_DP_SHARD), .to = AD_S(1), .ranges = &ranges};
  CHECK_OK(ad_array_after(comm, &in, columns.move, columns.axes, columns.to, &out));
  out.data = in.data;
  CHECK_STATUS(ad_transit_run(comm, &columns, &in, &out), AD_INVALID);
  ad_comm_free(comm, in.data);
  ad_mesh_destroy(mesh);
  return 0;
}

static void an_array_has_a_value_for_each_node_of_its_leaves(void **state) { run_ranks(3, sum_leaves, NULL); }

/* ---- results in memory that holds NaN ---- */

static const ad_shape shape = {3, {5, 4, 3}};

/* Fills a rank's part of a value, or its addend, with numbers that depend on the rank and the element's index. */
static void fill(ad_array *array, int64_t rank) {
  double *data = array->data;
  for (size_t i = 0; i < ad_array_numel(array); i++) data[i] = (double)rank + (double)i / 16;
}

/* Runs a transition twice, with a result whose memory contains zeros, and then NaN; the results must have the same
 * bits. */
static void move_into_poison(ad_comm *comm, const ad_mesh *mesh, const ad_transition *entry, ad_type from, ad_type to) {
  ad_layout layout = ad_layout_all(mesh, AD_R);
  ad_layout_set(&layout, AD_AXES(AD_TP), from);
  int same = from == AD_R || from == AD_I;
  ad_array in, clear, poisoned;
  CHECK_OK(ad_array_create(comm, AD_F64, &shape, &layout, &in));
  fill(&in, same ? 0 : ad_comm_rank(comm));
  CHECK_OK(ad_array_after(comm, &in, entry->move, AD_AXES(AD_TP), to, &clear));
  CHECK_OK(ad_array_create(comm, AD_F64, &clear.shape, &clear.layout, &clear));
  poisoned = clear;
  poisoned.data = rank_memory(ad_array_bytes(&poisoned));
  CHECK_OK(ad_array_move(comm, &in, entry->move, AD_AXES(AD_TP), to, AD_F64, &clear));
  CHECK_OK(ad_array_move(comm, &in, entry->move, AD_AXES(AD_TP), to, AD_F64, &poisoned));
  CHECK(!memcmp(clear.data, poisoned.data, ad_array_bytes(&clear)));
  rank_memory_check(poisoned.data);
  rank_memory_free(poisoned.data);
  ad_array_destroy(comm, &in);
  ad_array_destroy(comm, &clear);
}

static const ad_type shardings[] = {AD_S(0), AD_S(1), AD_S(2), AD_S_ZIGZAG(0), AD_S_ZIGZAG(1), AD_S_ZIGZAG(2)};
enum { SHARDINGS = sizeof shardings / sizeof *shardings };

/* The table writes S(0) for any S(d), so every dimension is tried. */
static int kinds(ad_type type) { return type == AD_S(0) ? SHARDINGS : 1; }
static ad_type kind(ad_type type, int i) { return type == AD_S(0) ? shardings[i] : type; }

static int move_everything_into_poison(ad_comm *comm, void *context) {
  (void)context;
  ad_mesh *mesh;
  size_t count;
  const ad_transition *table = ad_transition_table(&count);
  CHECK_OK(ad_mesh_create("tp=3", &mesh));
  for (size_t e = 0; e < count; e++) {
    int exchanges = table[e].from == AD_V && table[e].to == AD_V;  // all_to_all V to V needs counts
    // Declaring S(d) needs equal parts, since the full shape follows from one part.
    int declares = table[e].move == AD_MOVE_DECLARE;
    for (int f = 0; f < kinds(table[e].from); f++)
      for (int t = 0; t < kinds(table[e].to); t++) {
        ad_type from = kind(table[e].from, f), to = kind(table[e].to, t);
        if (!exchanges && !declares && from != to) move_into_poison(comm, mesh, &table[e], from, to);
      }
  }
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_transition_writes_every_element_of_its_result(void **state) {
  run_ranks(3, move_everything_into_poison, NULL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sum_reads_its_addends_at_their_scale),
      cmocka_unit_test(an_array_has_a_value_for_each_node_of_its_leaves),
      cmocka_unit_test(a_transition_writes_every_element_of_its_result),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
