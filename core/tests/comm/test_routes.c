/* Tests which member of a group that spans nodes sums what and sends results to whom: on every placement of few ranks,
 * and on regular placements of many. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "comm/mpi/routes.h"
#include "tree_order.h"

enum { MEMBERS_MAX = 64 };

typedef struct placed {
  uint32_t members, node_of[MEMBERS_MAX];
  mpi_routes routes;
} placed;

static void make(placed *p) { assert_int_equal(ad_mpi_routes_make(p->members, p->node_of, &p->routes), AD_OK); }

static void on_every_small_placement(void (*check)(const placed *)) {
  for (uint32_t members = 1; members <= 6; members++)
    for (uint32_t number = 0; number < 729; number++) {
      placed p = {.members = members};
      uint32_t digits = number;
      for (uint32_t i = 0; i < members; i++, digits /= 3) p.node_of[i] = digits % 3;
      if (digits) continue;
      make(&p);
      check(&p);
      ad_mpi_routes_free(&p.routes);
    }
}

static placed regular(uint32_t nodes, uint32_t ranks) {
  placed p = {.members = nodes * ranks};
  for (uint32_t i = 0; i < p.members; i++) p.node_of[i] = i / ranks;
  make(&p);
  return p;
}

static void on_every_placement(void (*check)(const placed *)) {
  on_every_small_placement(check);
  for (uint32_t nodes = 1; nodes <= 8; nodes++)
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
      placed p = regular(nodes, ranks);
      check(&p);
      ad_mpi_routes_free(&p.routes);
    }
}

static ad_call call_of(ad_collective_op op, uint32_t members, ad_dtype dtype, ad_dtype accumulate) {
  ad_call call = {
      .op = op, .operation = ad_comm_operation_of(op), .dtype = dtype, .members = members, .count = 1 << 20};
  call.reducing = (ad_reducing){.dtype = dtype, .accumulate = accumulate};
  call.element = call.out_element = ad_dtype_size(dtype);
  return call;
}

/* ---- which member of a group sums which elements ---- */

static int is_on_one_node(const placed *p, size_t first, size_t end) {
  for (size_t i = first; i < end; i++)
    if (p->node_of[i] != p->node_of[first]) return 0;
  return 1;
}

/* Finds the largest part of the tree over [first, end) that has member i and lies on one node. */
static void find_part(const placed *p, uint32_t i, size_t *first, size_t *end) {
  while (!is_on_one_node(p, *first, *end)) {
    size_t cut = tree_cut(*first, *end);
    if (i < cut)
      *end = cut;
    else
      *first = cut;
  }
}

static void check_parts(const placed *p) {
  for (uint32_t i = 0; i < p->members; i++) {
    size_t first = 0, end = p->members;
    find_part(p, i, &first, &end);
    assert_int_equal(p->routes.places[i].first, first);
    assert_int_equal(p->routes.places[i].count, end - first);
  }
}

static void a_member_belongs_to_the_largest_part_of_the_tree_on_its_node(void **state) {
  on_every_placement(check_parts);
}

static void check_readers(const placed *p) {
  ad_call call = call_of(AD_ALL_REDUCE, p->members, AD_F32, AD_F32);
  for (uint32_t k = 0; k < p->members; k++)
    for (uint32_t i = 0; i < p->members; i++) {
      const mpi_place *place = &p->routes.places[i];
      uint32_t reader = ad_mpi_reader(&p->routes, &call, i, k);
      int sums_first = p->node_of[i] != p->node_of[k] && place->count > 1;
      if (!sums_first) assert_int_equal(reader, k);
      if (!sums_first) continue;
      assert_in_range(reader, place->first, place->first + place->count - 1);
      assert_int_equal(reader, ad_mpi_reader(&p->routes, &call, place->first, k));
    }
}

static void every_addend_of_a_part_is_read_by_the_one_who_sends_its_sum(void **state) {
  on_every_placement(check_readers);
}

/* How many values of slice k come from other nodes. */
/* A node's ranks share the work for other nodes: each forms and sends the sums of some slices, and forwards results. */
static void the_members_of_a_node_take_turns(void **state) {
  placed p = regular(2, 4);
  ad_call sum = call_of(AD_ALL_REDUCE, p.members, AD_F32, AD_F32);
  ad_call gather = call_of(AD_ALL_GATHER, p.members, AD_F32, AD_F32);
  uint32_t reads = 0, relays = 0;
  for (uint32_t k = 4; k < 8; k++) {
    reads |= 1u << ad_mpi_reader(&p.routes, &sum, 0, k);
    for (uint32_t i = 0; i < 4; i++)
      if (ad_mpi_giver(&p.routes, &gather, k, i) == k) relays |= 1u << i;
  }
  assert_int_equal(reads, 0xf);
  assert_int_equal(relays, 0xf);
  ad_mpi_routes_free(&p.routes);
}

static uint32_t crossing(const placed *p, const ad_call *call, uint32_t k) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < p->members; i++) {
    if (p->node_of[i] == p->node_of[k]) continue;
    count += !ad_mpi_sums_first(&p->routes, call, i) || p->routes.places[i].first == i;
  }
  return count;
}

static void check_aligned(uint32_t nodes, uint32_t ranks) {
  placed p = regular(nodes, ranks);
  ad_call call = call_of(AD_REDUCE_SCATTER, p.members, AD_F32, AD_F32);
  for (uint32_t k = 0; k < p.members; k++) assert_int_equal(crossing(&p, &call, k), nodes - 1);
  ad_mpi_routes_free(&p.routes);
}

static void a_node_that_is_a_part_of_the_tree_sends_one_value(void **state) {
  for (uint32_t nodes = 2; nodes <= 8; nodes *= 2)
    for (uint32_t ranks = 1; ranks <= 8; ranks++) check_aligned(nodes, ranks);
}

static void a_pair_on_a_node_of_an_uneven_world_is_a_part_of_the_tree(void **state) {
  placed p = {.members = 5, .node_of = {0, 0, 1, 1, 2}};
  ad_call call = call_of(AD_ALL_REDUCE, p.members, AD_F32, AD_F32);
  make(&p);
  assert_int_equal(crossing(&p, &call, 4), 2);
  assert_int_equal(crossing(&p, &call, 0), 2);
  ad_mpi_routes_free(&p.routes);
}

static void a_sum_crosses_only_if_it_is_no_longer_than_its_addends(void **state) {
  placed two = regular(2, 2), four = regular(2, 4);
  ad_call narrow = call_of(AD_ALL_REDUCE, 4, AD_BF16, AD_F32), wide = call_of(AD_ALL_REDUCE, 4, AD_BF16, AD_F64);
  ad_call cast = call_of(AD_BROADCAST, 4, AD_F32, AD_F32);
  assert_true(ad_mpi_sums_first(&two.routes, &narrow, 0));  // 4 bytes, the size of two addends of 2 bytes
  assert_false(ad_mpi_sums_first(&two.routes, &wide, 0));   // 8 bytes, more than two addends
  assert_true(ad_mpi_sums_first(&four.routes, &wide, 0));
  assert_false(ad_mpi_sums_first(&two.routes, &cast, 0));
  ad_mpi_routes_free(&two.routes);
  ad_mpi_routes_free(&four.routes);
}

/* ---- results that all members get ---- */

static void check_givers(const placed *p) {
  ad_call call = call_of(AD_ALL_GATHER, p->members, AD_F32, AD_F32);
  for (uint32_t k = 0; k < p->members; k++) {
    uint32_t crossed[MEMBERS_MAX] = {0};
    for (uint32_t i = 0; i < p->members; i++) {
      uint32_t giver = i == k ? k : ad_mpi_giver(&p->routes, &call, k, i);
      int is_far = p->node_of[i] != p->node_of[k];
      if (giver != k) assert_int_equal(p->node_of[giver], p->node_of[i]);
      if (giver != k) assert_int_equal(ad_mpi_giver(&p->routes, &call, k, giver), k);
      if (!is_far) assert_int_equal(giver, k);
      crossed[p->node_of[i]] += is_far && giver == k;
    }
    for (uint32_t i = 0; i < p->members; i++) assert_int_equal(crossed[p->node_of[i]], p->node_of[i] != p->node_of[k]);
  }
}

static void what_is_for_all_goes_to_each_other_node_once(void **state) { on_every_placement(check_givers); }

static void what_is_for_one_goes_to_it(void **state) {
  placed p = regular(2, 3);
  ad_call all_to_all = call_of(AD_ALL_TO_ALL, p.members, AD_F32, AD_F32);
  ad_call inline_blocks = call_of(AD_ALL_GATHER, p.members, AD_F32, AD_F32);
  inline_blocks.count = 10;  // these blocks travel inside the call itself
  for (uint32_t i = 0; i < p.members; i++)
    for (uint32_t k = 0; k < p.members; k++) {
      assert_int_equal(ad_mpi_giver(&p.routes, &all_to_all, k, i), k);
      assert_int_equal(ad_mpi_giver(&p.routes, &inline_blocks, k, i), k);
    }
  ad_mpi_routes_free(&p.routes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_member_belongs_to_the_largest_part_of_the_tree_on_its_node),
      cmocka_unit_test(every_addend_of_a_part_is_read_by_the_one_who_sends_its_sum),
      cmocka_unit_test(the_members_of_a_node_take_turns),
      cmocka_unit_test(a_node_that_is_a_part_of_the_tree_sends_one_value),
      cmocka_unit_test(a_pair_on_a_node_of_an_uneven_world_is_a_part_of_the_tree),
      cmocka_unit_test(a_sum_crosses_only_if_it_is_no_longer_than_its_addends),
      cmocka_unit_test(what_is_for_all_goes_to_each_other_node_once),
      cmocka_unit_test(what_is_for_one_goes_to_it),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
