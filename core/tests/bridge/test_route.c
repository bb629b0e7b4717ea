/* Tests which rank sends which rows to whom over a bridge, against a slow oracle that looks at every row of every rank:
 * all factorisations of 8, 12 and 16 ranks in every order of axes, and all pairs of 1 to 12 parts on disjoint ranks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "addend/bridge.h"
#include "bridge/route.h"

#define must(call) assert_int_equal((call), AD_OK)

enum { RANKS_MAX = 48, ROWS_MAX = 48, ROUTES_MAX = 256 };

static ad_layout batch_on(const ad_mesh *mesh, ad_type other) {
  ad_layout layout = ad_layout_all(mesh, other);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (AD_AXES(axis) & AD_AXES_DP) ad_layout_set(&layout, AD_AXES(axis), AD_S(0));
  return layout;
}

/* ---- the oracle: looks at each row of each rank ---- */

static int holds(const ad_layout *layout, int64_t rows, int64_t rank, int64_t row, int64_t *local) {
  ad_span part;
  if (!ad_mesh_has_rank(layout->mesh, rank) || !ad_layout_spans(layout, 0, rows, rank, &part, 1)) return 0;
  *local = row - part.first;
  return row >= part.first && row < part.first + part.count;
}

/* giver[rank][row]: the rank that sends row `row` of the full value to `rank`; -1: none. */
static int64_t giver[RANKS_MAX][ROWS_MAX];

static void take_receives(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank) {
  ad_route routes[ROUTES_MAX];
  size_t count = ad_bridge_receives(from, to, rows, rank, routes, ROUTES_MAX);
  assert_true(count <= ROUTES_MAX);
  for (int64_t row = 0; row < rows; row++) giver[rank][row] = -1;
  for (size_t i = 0; i < count; i++) {
    for (int64_t k = 0; k < routes[i].count; k++) {
      for (int64_t row = 0; row < rows; row++) {
        int64_t here, there;
        if (!holds(to, rows, rank, row, &here) || here != routes[i].here + k) continue;
        assert_true(holds(from, rows, routes[i].peer, row, &there)); /* the sender holds the row */
        assert_int_equal(there, routes[i].there + k);
        assert_int_equal(giver[rank][row], -1); /* the row is received once */
        giver[rank][row] = routes[i].peer;
      }
    }
  }
}

static void assert_complete(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t rank) {
  for (int64_t row = 0; row < rows; row++) {
    int64_t local;
    assert_int_equal(holds(to, rows, rank, row, &local), giver[rank][row] >= 0);
    if (giver[rank][row] >= 0 && holds(from, rows, rank, row, &local)) assert_int_equal(giver[rank][row], rank);
  }
}

/* Checks that the pieces that each rank sends are the pieces that the other ranks receive. */
static void assert_mirrored(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t first, int64_t ranks) {
  size_t sent = 0, received = 0;
  for (int64_t rank = first; rank < first + ranks; rank++) {
    ad_route sends[ROUTES_MAX], receives[ROUTES_MAX];
    size_t count = ad_bridge_sends(from, to, rows, rank, sends, ROUTES_MAX);
    received += ad_bridge_receives(from, to, rows, rank, NULL, 0);
    sent += count;
    for (size_t i = 0; i < count; i++) {
      size_t others = ad_bridge_receives(from, to, rows, sends[i].peer, receives, ROUTES_MAX), found = 0;
      for (size_t j = 0; j < others; j++)
        found += receives[j].peer == rank && receives[j].here == sends[i].there && receives[j].there == sends[i].here &&
                 receives[j].count == sends[i].count;
      assert_int_equal(found, 1);
    }
  }
  assert_int_equal(sent, received);
}

static void hold_against_oracle(const ad_layout *from, const ad_layout *to, int64_t rows, int64_t first,
                                int64_t ranks) {
  for (int64_t rank = first; rank < first + ranks; rank++) {
    take_receives(from, to, rows, rank);
    assert_complete(from, to, rows, rank);
  }
  assert_mirrored(from, to, rows, first, ranks);
}

/* ---- both meshes on the same ranks ---- */

static const char *const axes[] = {"dp_shard", "cp", "tp"};
static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* All factorisations of `ranks` into three factors, each in all orders. */
static int list_meshes(int ranks, char texts[][64]) {
  int count = 0;
  for (int a = 1; a <= ranks; a++) {
    for (int b = 1; b <= ranks / a; b++) {
      int sizes[3] = {a, b, ranks / a / b};
      if (a * b * sizes[2] != ranks) continue;
      for (int o = 0; o < 6; o++, count++)
        snprintf(texts[count], sizeof texts[count], "%s=%d %s=%d %s=%d", axes[orders[o][0]], sizes[orders[o][0]],
                 axes[orders[o][1]], sizes[orders[o][1]], axes[orders[o][2]], sizes[orders[o][2]]);
    }
  }
  return count;
}

static void try_ranks(int ranks, int every) {
  static char texts[160][64];
  int count = list_meshes(ranks, texts);
  assert_true(count <= 160);
  for (int pair = 0; pair < count * count; pair += every) {
    ad_mesh *a, *b;
    must(ad_mesh_create(texts[pair / count], &a));
    must(ad_mesh_create(texts[pair % count], &b));
    ad_layout from = batch_on(a, AD_I), to = batch_on(b, AD_R);
    hold_against_oracle(&from, &to, ranks, 0, ranks);
    hold_against_oracle(&from, &to, ranks - 1, 0, ranks); /* a number of rows that the ranks do not divide */
    ad_mesh_destroy(a);
    ad_mesh_destroy(b);
  }
}

static void rows_go_where_they_belong_on_8_ranks(void **state) { try_ranks(8, 1); }
static void rows_go_where_they_belong_on_12_ranks(void **state) { try_ranks(12, 7); }
static void rows_go_where_they_belong_on_16_ranks(void **state) { try_ranks(16, 11); }

static void batches_of_two_axes_and_none_at_all(void **state) {
  ad_mesh *a, *b;
  must(ad_mesh_create("dp_replicate=2 dp_shard=3 tp=2", &a));
  must(ad_mesh_create("tp=3 dp_replicate=4", &b));
  ad_layout from = batch_on(a, AD_I), to = batch_on(b, AD_R);
  for (int64_t rows = 0; rows <= 25; rows++) hold_against_oracle(&from, &to, rows, 0, 12);
  ad_mesh_destroy(a);
  ad_mesh_destroy(b);
}

/* ---- groups of ranks that exchange rows ---- */

/* group[i]: the lowest of the ranks that exchange rows with rank i, directly or through others. */
static void join(const ad_layout *from, const ad_layout *to, int64_t ranks, int64_t *group) {
  for (int64_t i = 0; i < ranks; i++) group[i] = i;
  for (int64_t round = 0; round < ranks; round++) {
    for (int64_t i = 0; i < ranks; i++) {
      ad_route routes[ROUTES_MAX];
      size_t count = ad_bridge_receives(from, to, ranks, i, routes, ROUTES_MAX);
      for (size_t k = 0; k < count; k++) {
        int64_t j = routes[k].peer, least = group[i] < group[j] ? group[i] : group[j];
        group[i] = group[j] = least;
      }
    }
  }
}

/* Checks that two ranks are in one group if and only if `number` is the same for both. */
static void assert_together(const ad_layout *from, const ad_layout *to, int64_t ranks,
                            int64_t (*number)(const ad_mesh *a, const ad_mesh *b, int64_t rank)) {
  int64_t group[RANKS_MAX];
  join(from, to, ranks, group);
  for (int64_t i = 0; i < ranks; i++)
    for (int64_t j = 0; j < ranks; j++)
      assert_int_equal(group[i] == group[j], number(from->mesh, to->mesh, i) == number(from->mesh, to->mesh, j));
}

static int64_t at(const ad_mesh *mesh, int64_t rank, ad_axis axis) { return ad_mesh_position(mesh, rank, axis); }

/* Backward of fan-out (a: the model's mesh, b: the encoder's): a group for each source dp, destination tp and cp
 * position. */
static int64_t fan_out(const ad_mesh *a, const ad_mesh *b, int64_t rank) {
  return (at(b, rank, AD_DP_SHARD) * 100 + at(a, rank, AD_TP)) * 100 + at(a, rank, AD_CP);
}

/* Forward of fan-in (a: the encoder's mesh, b: the model's): a group has one member for each source dp
 * and cp position. */
static int64_t fan_in(const ad_mesh *a, const ad_mesh *b, int64_t rank) {
  return at(b, rank, AD_DP_SHARD) * 100 + at(a, rank, AD_TP);
}

static void every_rank_is_in_exactly_the_group_of_its_slot_and_level(void **state) {
  static const struct {
    const char *encoder, *model;
    int is_fan_out;
  } worlds[] = {
      {"dp=4 tp=2", "dp=2 cp=2 tp=2", 0}, {"dp=2 tp=4", "dp=4 cp=2 tp=1", 1}, {"dp=8 tp=1", "dp=2 cp=2 tp=2", 0},
      {"dp=6 tp=2", "dp=2 cp=3 tp=2", 0}, {"dp=2 tp=6", "dp=6 cp=2 tp=1", 1}, {"dp=3 tp=4", "dp=6 cp=2 tp=1", 1},
      {"dp=8 tp=2", "dp=4 cp=2 tp=2", 0}, {"dp=2 tp=8", "dp=4 cp=2 tp=2", 1}, {"dp=4 tp=4", "dp=8 cp=2 tp=1", 1}};
  for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
    ad_mesh *a, *b;
    must(ad_mesh_create(worlds[i].encoder, &a));
    must(ad_mesh_create(worlds[i].model, &b));
    ad_layout encoder = batch_on(a, AD_I), model = batch_on(b, AD_R);
    if (worlds[i].is_fan_out)
      assert_together(&model, &encoder, ad_mesh_size(a), fan_out);
    else
      assert_together(&encoder, &model, ad_mesh_size(a), fan_in);
    ad_mesh_destroy(a);
    ad_mesh_destroy(b);
  }
}

/* ---- disjoint ranks ---- */

static void every_pair_of_1_to_12_parts_on_ranks_apart(void **state) {
  for (int a = 1; a <= 12; a++) {
    for (int b = 1; b <= 12; b++) {
      char text[2][64];
      ad_mesh *source, *destination;
      snprintf(text[0], sizeof text[0], a % 2 ? "dp=%d tp=2" : "tp=2 dp=%d", a);
      snprintf(text[1], sizeof text[1], b % 3 ? "dp=%d cp=2" : "dp=%d", b);
      must(ad_mesh_create_pool(text[0], 0, &source));
      must(ad_mesh_create_pool(text[1], ad_mesh_size(source), &destination));
      ad_layout from = batch_on(source, AD_I), to = batch_on(destination, AD_R);
      int64_t ranks = ad_mesh_size(source) + ad_mesh_size(destination);
      for (int64_t rows = 11; rows <= 13; rows++) {
        hold_against_oracle(&from, &to, rows, 0, ranks);
        hold_against_oracle(&to, &from, rows, 0, ranks); /* backward */
      }
      ad_mesh_destroy(source);
      ad_mesh_destroy(destination);
    }
  }
}

/* The replicas of a row take turns in sending it: no rank sends twice as much as another needs to. */
static void replicas_share_the_work_between_ranks_apart(void **state) {
  ad_mesh *source, *destination;
  must(ad_mesh_create_pool("dp=2 tp=3", 0, &source));
  must(ad_mesh_create_pool("dp=2 cp=3", 6, &destination));
  ad_layout from = batch_on(source, AD_I), to = batch_on(destination, AD_R);
  for (int64_t rank = 0; rank < 6; rank++) assert_int_equal(ad_bridge_sends(&from, &to, 12, rank, NULL, 0), 1);
  ad_mesh_destroy(source);
  ad_mesh_destroy(destination);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_go_where_they_belong_on_8_ranks),
      cmocka_unit_test(rows_go_where_they_belong_on_12_ranks),
      cmocka_unit_test(rows_go_where_they_belong_on_16_ranks),
      cmocka_unit_test(batches_of_two_axes_and_none_at_all),
      cmocka_unit_test(every_rank_is_in_exactly_the_group_of_its_slot_and_level),
      cmocka_unit_test(every_pair_of_1_to_12_parts_on_ranks_apart),
      cmocka_unit_test(replicas_share_the_work_between_ranks_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
