/* Tests the kinds of ranks in a plan (ranks that do the same work) against a visit to every rank in small worlds, and
 * against counts by hand in larger ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/error.h"
#include "base/random.h"
#include "plan/rank_kinds.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { VALUES_MAX = 6, RANKS_MAX = 6000 };

/* A value in this layout; axes that the layout does not name are R. */
static ad_held held(const ad_mesh *mesh, const char *layout, int64_t rows, int64_t columns) {
  ad_held value = {.shape = {2, {rows, columns}}};
  char text[200], word[40];
  snprintf(text, sizeof text, "%s", layout);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    snprintf(word, sizeof word, "%s=", ad_axis_name((ad_axis)axis));
    const char *found = strstr(layout, word);
    if ((found && (found == layout || found[-1] == ' ')) || !(ad_mesh_named(mesh) & AD_AXES(axis))) continue;
    snprintf(text + strlen(text), sizeof text - strlen(text), " %sR", word);
  }
  must(ad_layout_parse(mesh, text, &value.layout));
  return value;
}

static ad_kinds *find(const ad_held *values, size_t count, int64_t ranks, int64_t ranks_per_node) {
  ad_kinds *kinds = NULL;
  must(ad_kinds_find(values, count, ranks, ranks_per_node, &kinds));
  return kinds;
}

/* ---- compared with a visit to every rank ---- */

static void expect_kinds(const ad_kinds *kinds, const uint64_t *keys, int64_t ranks) {
  int64_t visited = 0;
  for (size_t i = 0; i < ad_kinds_count(kinds); i++) {
    const ad_rank_kind *kind = ad_kinds_at(kinds, i);
    int64_t count = 0, first = -1;
    for (int64_t rank = 0; rank < ranks; rank++) {
      if (keys[rank] != kind->key) continue;
      if (!count++) first = rank;
    }
    assert_int_equal(kind->ranks, count);
    assert_int_equal(kind->first, first);
    assert_true(!i || ad_kinds_at(kinds, i - 1)->first < first);
    visited += count;
  }
  assert_int_equal(visited, ranks);
}

static void expect_node(const ad_kinds *kinds, const uint64_t *keys, int64_t ranks, int64_t per_node) {
  size_t *peaks = calloc(ad_kinds_count(kinds), sizeof *peaks);
  for (size_t i = 0; i < ad_kinds_count(kinds); i++) peaks[i] = (size_t)(ad_kinds_at(kinds, i)->key % 5);
  int64_t most = -1, node = 0, sum = 0;
  for (int64_t rank = 0; rank < ranks; rank++) {
    sum += (int64_t)(keys[rank] % 5);
    if ((rank + 1) % per_node && rank + 1 < ranks) continue;
    if (sum > most) {
      most = sum;
      node = rank / per_node;
    }
    sum = 0;
  }
  ad_node_peak found;
  must(ad_kinds_node_peak(kinds, peaks, &found));
  if (found.is_a_bound) {
    assert_true(found.peak >= most);
  } else {
    assert_int_equal(found.peak, most);
    assert_int_equal(found.node, node);
  }
  free(peaks);
}

/* Compares; returns 0 if the nodes divide the mesh so badly that no kinds are found. */
static int expect_same(const ad_held *values, size_t count, int64_t ranks, int64_t per_node) {
  static uint64_t keys[RANKS_MAX];
  ad_kinds *kinds;
  ad_status status = ad_kinds_find(values, count, ranks, per_node, &kinds);
  if (status) {
    assert_listed();
    return 0;
  }
  for (int64_t rank = 0; rank < ranks; rank++) keys[rank] = ad_rank_key(values, count, rank, per_node);
  expect_kinds(kinds, keys, ranks);
  expect_node(kinds, keys, ranks, per_node);
  ad_kinds_destroy(kinds);
  return 1;
}

static int64_t draw(uint64_t *at, int64_t below) { return (int64_t)(ad_random_bits(7, 1, (*at)++) % (uint64_t)below); }

/* The layouts cut one dimension or both, on one axis or several, plainly or zigzag, and nested. */
static void kinds_are_those_that_a_visit_to_each_rank_finds(void **state) {
  static const char *const meshes[] = {"dp_replicate=3 dp_shard=5 tp=2", "dp_shard=12 cp=3 tp=4",
                                       "pp=2 dp_shard=8 tp=3", "dp_shard=7 cp=4", "dp_replicate=2 dp_shard=64 tp=2"};
  static const char *const first[] = {"dp_shard=S0", "dp_shard=S0 tp=S1", "tp=S0", "dp_shard=S1"};
  static const int64_t nodes[] = {1, 2, 3, 4, 6, 8, 16, 100000};
  uint64_t at = 0;
  int found = 0, all = 0;
  for (int round = 0; round < 300; round++, all++) {
    ad_mesh *mesh;
    must(ad_mesh_create(meshes[draw(&at, 5)], &mesh));
    ad_held values[VALUES_MAX];
    size_t count = 1 + (size_t)draw(&at, VALUES_MAX);
    for (size_t i = 0; i < count; i++) {
      char layout[80];
      snprintf(layout, sizeof layout, "%s", first[draw(&at, 4)]);
      if (!(ad_mesh_named(mesh) & AD_AXES(AD_TP))) snprintf(layout, sizeof layout, "dp_shard=S%d", (int)draw(&at, 2));
      if ((ad_mesh_named(mesh) & AD_AXES(AD_CP)) && draw(&at, 2)) strcat(layout, draw(&at, 2) ? " cp=S1z" : " cp=S0");
      values[i] = held(mesh, layout, draw(&at, 40), draw(&at, 9));
      values[i].is_written = (int)draw(&at, 2);
      values[i].is_shared = !draw(&at, 4);
    }
    int64_t per_node = nodes[draw(&at, 8)];
    found += expect_same(values, count, ad_mesh_size(mesh), per_node);
    ad_mesh_destroy(mesh);
  }
  assert_true(found > all / 2);
}

static void kinds_hold_on_two_views_of_the_same_ranks(void **state) {
  static const char *const views[] = {"efsdp=4 ep=6 etp=2", "efsdp=2 ep=4 etp=6", "ep=48", "efsdp=3 ep=16"};
  uint64_t at = 1000;
  for (int round = 0; round < 60; round++) {
    ad_mesh *dense, *sparse;
    must(ad_mesh_create("dp_shard=8 cp=3 tp=2", &dense));
    must(ad_mesh_create_view(dense, views[round % 4], &sparse));
    ad_held values[] = {held(dense, "dp_shard=S0 tp=S1", draw(&at, 40), draw(&at, 6)),
                        held(dense, "dp_shard=S0 cp=S1z", draw(&at, 20), draw(&at, 20)),
                        held(sparse, round % 4 < 2 ? "efsdp=S0 ep=S0 etp=S1" : "ep=S0", draw(&at, 90), draw(&at, 9))};
    values[2].is_written = round % 2;
    expect_same(values, 3, 48, round % 3 ? 48 : 6);
    ad_mesh_destroy(dense);
    ad_mesh_destroy(sparse);
  }
}

static void kinds_hold_on_pools(void **state) {
  ad_mesh *left, *right;
  must(ad_mesh_create_pool("dp_shard=6", 0, &left));
  must(ad_mesh_create_pool("block=2 dp_shard=5", 6, &right));
  ad_held values[] = {held(left, "dp_shard=S0", 9, 2), held(right, "dp_shard=S0", 7, 2),
                      held(right, "block=S0 dp_shard=S1", 3, 8)};
  assert_true(expect_same(values, 3, 16, 16));
  assert_true(expect_same(values, 3, 16, 2));
  assert_true(expect_same(values, 3, 16, 3));
  assert_true(expect_same(values, 3, 20, 20)); /* four more ranks, which hold nothing */
  ad_mesh_destroy(left);
  ad_mesh_destroy(right);
}

/* ---- compared with counts by hand ---- */

static int64_t ranks_of(const ad_kinds *kinds, const ad_held *value, int64_t rows, int64_t columns) {
  int64_t ranks = 0;
  for (size_t i = 0; i < ad_kinds_count(kinds); i++) {
    const ad_rank_kind *kind = ad_kinds_at(kinds, i);
    ad_shape local = ad_layout_local_shape(&value->layout, &value->shape, kind->first);
    if (local.dim[0] == rows && local.dim[1] == columns) ranks += kind->ranks;
  }
  return ranks;
}

static void uneven_shardings_on_two_axes_multiply(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_shard=10000 tp=10000", &mesh));
  ad_held value = held(mesh, "dp_shard=S0 tp=S1", 25000, 300);
  ad_kinds *kinds = find(&value, 1, 100000000, 100000000);
  assert_int_equal(ad_kinds_count(kinds), 4);
  assert_int_equal(ranks_of(kinds, &value, 2, 0), 5000 * 9700);
  assert_int_equal(ranks_of(kinds, &value, 3, 0), 5000 * 9700);
  assert_int_equal(ranks_of(kinds, &value, 2, 1), 5000 * 300);
  assert_int_equal(ranks_of(kinds, &value, 3, 1), 5000 * 300);
  ad_kinds_destroy(kinds);
  ad_mesh_destroy(mesh);
}

static void the_largest_world_ends(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_replicate=1048576 dp_shard=1048576", &mesh));
  int64_t ranks = ad_mesh_size(mesh);
  ad_held values[] = {held(mesh, "dp_replicate=S0 dp_shard=S0", 1000, 4), held(mesh, "dp_shard=S1", 3, 700)};
  values[1].is_written = 1;
  ad_kinds *kinds = find(values, 2, ranks, 1 << 16);
  assert_int_equal(ranks_of(kinds, &values[0], 1, 4), 1000);
  assert_int_equal(ranks_of(kinds, &values[1], 3, 1), (int64_t)700 << 20);
  size_t *peaks = calloc(ad_kinds_count(kinds), sizeof *peaks);
  for (size_t i = 0; i < ad_kinds_count(kinds); i++)
    peaks[i] = (size_t)ad_layout_local_shape(&values[1].layout, &values[1].shape, ad_kinds_at(kinds, i)->first).dim[1];
  ad_node_peak most;
  must(ad_kinds_node_peak(kinds, peaks, &most));
  assert_false(most.is_a_bound);
  assert_int_equal(most.peak, 44); /* 700 over 16 nodes, rounded up */
  free(peaks);
  ad_kinds_destroy(kinds);
  ad_mesh_destroy(mesh);
}

static void no_number_of_different_sizes_is_too_many(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("dp_shard=100000", &mesh));
  enum { SIZES = 300 };
  static ad_held values[SIZES];
  for (int i = 0; i < SIZES; i++) values[i] = held(mesh, "dp_shard=S0", i + 1, 1);
  ad_kinds *kinds = find(values, SIZES, 100000, 100000);
  int64_t ranks = 0;
  for (size_t i = 0; i < ad_kinds_count(kinds); i++) ranks += ad_kinds_at(kinds, i)->ranks;
  assert_int_equal(ranks, 100000);
  assert_int_equal(ranks_of(kinds, &values[298], 1, 1), 299);
  ad_kinds_destroy(kinds);
  ad_mesh_destroy(mesh);
}

static void nodes_that_divide_no_group_are_refused(void **state) {
  ad_mesh *mesh;
  must(ad_mesh_create("pp=1000 tp=6", &mesh));
  ad_held value = held(mesh, "pp=V", 6, 1);
  value.is_shared = 1;
  ad_kinds *kinds;
  assert_int_equal(ad_kinds_find(&value, 1, 6000, 8, &kinds), AD_INVALID);
  assert_says("8", "tp");
  ad_kinds_destroy(find(&value, 1, 6000, 12));
  ad_kinds_destroy(find(&value, 1, 6000, 3));
  ad_mesh_destroy(mesh);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(kinds_are_those_that_a_visit_to_each_rank_finds),
      cmocka_unit_test(kinds_hold_on_two_views_of_the_same_ranks),
      cmocka_unit_test(kinds_hold_on_pools),
      cmocka_unit_test(uneven_shardings_on_two_axes_multiply),
      cmocka_unit_test(the_largest_world_ends),
      cmocka_unit_test(no_number_of_different_sizes_is_too_many),
      cmocka_unit_test(nodes_that_divide_no_group_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
