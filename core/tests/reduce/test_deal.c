/* Tests which rank computes which leaf: in every world of at most 12 data-parallel positions, with every list of syncs
 * of at most four microbatches, with and without reduce_scatters, and with up to 40 leaves, each leaf is computed once,
 * and the ranges of leaves of a collective's members follow one another in the order of the group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "reduce/deal.h"

enum { POSITIONS = 12, LEAVES = 40, MICROBATCHES = 4, LISTS = 1 + 3 + 9 + 27, ROUNDS = LEAVES + MICROBATCHES };

/* Writes sync list number `list` of all sync lists of at most MICROBATCHES microbatches, and returns its length. */
static int64_t list_at(int list, ad_sync *sync) {
  int64_t length = 1;
  for (int lists = 1; list >= lists; lists *= 3, length++) list -= lists;
  for (int64_t m = 0; m < length - 1; m++, list /= 3)
    sync[m] = (ad_sync[]){AD_SYNC_NONE, AD_SYNC_SHARD, AD_SYNC_ALL}[list % 3];
  sync[length - 1] = AD_SYNC_ALL;
  return length;
}

/* Replaces each microbatch of the list by the fewest rounds that all leaves need: the last of these rounds has the
 * microbatch's sync, all others have AD_SYNC_NONE. */
static int64_t expand(const ad_sync *list, int64_t microbatches, int64_t leaves, int64_t positions, ad_sync *sync) {
  int64_t each = (leaves + positions * microbatches - 1) / (positions * microbatches), rounds = 0;
  for (int64_t m = 0; m < microbatches; m++) {
    for (int64_t k = 0; k < each - 1; k++) sync[rounds++] = AD_SYNC_NONE;
    sync[rounds++] = list[m];
  }
  return rounds;
}

/* A function that checks one way of dealing leaves to ranks. */
typedef void (*deal_check)(const ad_leaf_deal *deal);

static void for_lists(int64_t replicas, int64_t shards, int64_t leaves, int scatters, deal_check check) {
  for (int list = 0; list < LISTS; list++) {
    ad_sync microbatches[MICROBATCHES], sync[ROUNDS];
    int64_t length = list_at(list, microbatches);
    int64_t rounds = expand(microbatches, length, leaves, replicas * shards, sync);
    check(&(ad_leaf_deal){leaves, replicas, shards, rounds, sync, scatters});
  }
}

static void for_all_deals(deal_check check) {
  for (int64_t replicas = 1; replicas <= POSITIONS; replicas++)
    for (int64_t shards = 1; replicas * shards <= POSITIONS; shards++)
      for (int64_t leaves = 1; leaves <= LEAVES; leaves++)
        for (int scatters = 0; scatters < 2; scatters++) for_lists(replicas, shards, leaves, scatters, check);
}

/* ---- each leaf once ---- */

static void check_each_once(const ad_leaf_deal *deal) {
  int computed[LEAVES] = {0};
  for (int64_t r = 0; r < deal->replicas; r++)
    for (int64_t s = 0; s < deal->shards; s++) {
      int64_t before = -1;
      for (int64_t round = 0; round < deal->rounds; round++) {
        int64_t leaf = ad_leaf_of(deal, r, s, round);
        if (leaf < 0) continue;
        assert_true(leaf > before && leaf < deal->leaves);
        computed[leaf]++;
        before = leaf;
      }
    }
  for (int64_t leaf = 0; leaf < deal->leaves; leaf++) assert_int_equal(computed[leaf], 1);
}

static void each_leaf_is_computed_once(void **state) { for_all_deals(check_each_once); }

/* ---- ranges ---- */

static int64_t end_of(ad_span span) { return span.first + span.count; }

static int ends_unit(const ad_leaf_deal *deal, int64_t round) {
  return deal->sync[round] == AD_SYNC_ALL || (deal->scatters && deal->sync[round] == AD_SYNC_SHARD);
}

/* Each of these functions returns the first round of the unit, or of the segment, that contains `round`. */
static int64_t first_of_unit(const ad_leaf_deal *deal, int64_t round) {
  while (round && !ends_unit(deal, round - 1)) round--;
  return round;
}
static int64_t first_of_segment(const ad_leaf_deal *deal, int64_t round) {
  while (round && deal->sync[round - 1] != AD_SYNC_ALL) round--;
  return round;
}

/* The leaves that a position computes in the rounds [first, last] are its range, one after another. */
static void check_position(const ad_leaf_deal *deal, int64_t r, int64_t s, int64_t first, int64_t last) {
  ad_span own = ad_leaves_of_position(deal, r, s, first);
  int64_t next = own.first;
  for (int64_t round = first; round <= last; round++) {
    ad_span again = ad_leaves_of_position(deal, r, s, round);
    assert_memory_equal(&again, &own, sizeof own);
    int64_t leaf = ad_leaf_of(deal, r, s, round);
    if (leaf >= 0) assert_int_equal(leaf, next++);
  }
  assert_int_equal(next, end_of(own));
}

/* The ranges of all shards of a replica, in their order, are the unit's. */
static void check_unit(const ad_leaf_deal *deal, int64_t r, int64_t first, int64_t last) {
  ad_span unit = ad_leaves_of_unit(deal, r, last);
  int64_t next = unit.first;
  for (int64_t s = 0; s < deal->shards; s++) {
    assert_int_equal(ad_leaves_of_position(deal, r, s, last).first, next);
    next = end_of(ad_leaves_of_position(deal, r, s, last));
    check_position(deal, r, s, first, last);
  }
  assert_int_equal(next, end_of(unit));
}

/* The ranges of the units in a replica's rounds [first, last], in their order, are the replica's. */
static void check_replica(const ad_leaf_deal *deal, int64_t r, int64_t first, int64_t last) {
  ad_span replica = ad_leaves_of_replica(deal, r, last);
  int64_t next = replica.first;
  for (int64_t round = first; round <= last; round++) {
    assert_int_equal(ad_leaf_round_sends(deal, round), ends_unit(deal, round));
    if (!ends_unit(deal, round)) continue;
    assert_int_equal(ad_leaves_of_unit(deal, r, round).first, next);
    next = end_of(ad_leaves_of_unit(deal, r, round));
    check_unit(deal, r, first_of_unit(deal, round), round);
  }
  assert_int_equal(next, end_of(replica));
}

/* The ranges of all replicas, in their order, are the segment's, and those of segments are all leaves. */
static void check_ranges(const ad_leaf_deal *deal) {
  int64_t next = 0;
  for (int64_t round = 0; round < deal->rounds; round++) {
    if (deal->sync[round] != AD_SYNC_ALL) continue;
    assert_int_equal(ad_leaves_of_segment(deal, round).first, next);
    for (int64_t r = 0; r < deal->replicas; r++) {
      assert_int_equal(ad_leaves_of_replica(deal, r, round).first, next);
      next = end_of(ad_leaves_of_replica(deal, r, round));
      check_replica(deal, r, first_of_segment(deal, round), round);
    }
    assert_int_equal(next, end_of(ad_leaves_of_segment(deal, round)));
  }
  assert_int_equal(next, deal->leaves);
}

static void members_of_each_collective_have_neighbouring_ranges(void **state) { for_all_deals(check_ranges); }

/* ---- the sums of a step, node by node ---- */

/* Sums of nodes in ascending order; no two neighbours are siblings. */
typedef struct sums {
  ad_node node[AD_NODES_MAX];
  size_t count;
} sums;

static void push(sums *to, ad_node node, int64_t leaves) {
  to->node[to->count++] = node;
  while (to->count > 1 && ad_nodes_are_siblings(to->node[to->count - 2], to->node[to->count - 1], leaves)) {
    to->node[to->count - 2].count += to->node[to->count - 1].count;
    to->count--;
  }
}

static void push_all(sums *to, const sums *from, int64_t leaves) {
  for (size_t i = 0; i < from->count; i++) push(to, from->node[i], leaves);
}

/* Pushes the sums that the ranks of replica r have after the rounds [first, last], which a reduction over the shards
 * then sums. */
static void push_unit(const ad_leaf_deal *deal, int64_t r, int64_t first, int64_t last, sums *to) {
  for (int64_t s = 0; s < deal->shards; s++) {
    sums own = {.count = 0};
    for (int64_t round = first; round <= last; round++) {
      int64_t leaf = ad_leaf_of(deal, r, s, round);
      if (leaf >= 0) push(&own, (ad_node){leaf, 1}, deal->leaves);
    }
    push_all(to, &own, deal->leaves);
  }
}

/* Sums the nodes as a step does: on each rank, over the shards at the end of a unit, and over the replicas at the end
 * of a segment. */
static void check_sums(const ad_leaf_deal *deal) {
  sums all = {.count = 0};
  for (int64_t end = 0; end < deal->rounds; end++) {
    if (deal->sync[end] != AD_SYNC_ALL) continue;
    for (int64_t r = 0; r < deal->replicas; r++) {
      sums replica = {.count = 0};
      for (int64_t round = first_of_segment(deal, end); round <= end; round++) {
        sums unit = {.count = 0};
        if (!ends_unit(deal, round)) continue;
        push_unit(deal, r, first_of_unit(deal, round), round, &unit);
        push_all(&replica, &unit, deal->leaves);
      }
      push_all(&all, &replica, deal->leaves);
    }
  }
  assert_int_equal(all.count, 1);
  assert_int_equal(all.node[0].first, 0);
  assert_int_equal(all.node[0].count, deal->leaves);
}

static void what_is_summed_in_this_order_is_the_whole_tree(void **state) { for_all_deals(check_sums); }

/* ---- examples by hand ---- */

static void check_dealt(const ad_leaf_deal *deal, const int64_t *expected) {
  for (int64_t r = 0; r < deal->replicas; r++)
    for (int64_t s = 0; s < deal->shards; s++)
      for (int64_t round = 0; round < deal->rounds; round++)
        assert_int_equal(ad_leaf_of(deal, r, s, round), *expected++);
}

static const ad_sync whole_at_the_end[] = {AD_SYNC_NONE, AD_SYNC_NONE, AD_SYNC_NONE, AD_SYNC_ALL};
static const ad_sync shards_and_end[] = {AD_SYNC_SHARD, AD_SYNC_SHARD, AD_SYNC_SHARD, AD_SYNC_ALL};

static void sums_that_stay_local_are_of_neighbouring_leaves(void **state) {
  check_dealt(&(ad_leaf_deal){12, 1, 3, 4, whole_at_the_end, 1}, (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  check_dealt(&(ad_leaf_deal){12, 3, 1, 4, shards_and_end, 0}, (int64_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  check_dealt(&(ad_leaf_deal){16, 5, 1, 4, whole_at_the_end, 0},
              (int64_t[]){-1, 0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, 12, 13, 14, 15});
}

static void where_rounds_are_scattered_a_round_has_neighbouring_leaves(void **state) {
  check_dealt(&(ad_leaf_deal){12, 1, 3, 4, shards_and_end, 1}, (int64_t[]){0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11});
}

static void replicas_are_outside_units_and_segments_outside_replicas(void **state) {
  static const ad_sync one[] = {AD_SYNC_NONE, AD_SYNC_SHARD, AD_SYNC_ALL};
  check_dealt(&(ad_leaf_deal){18, 3, 2, 3, one, 1},
              (int64_t[]){0, 1, 4, 2, 3, 5, 6, 7, 10, 8, 9, 11, 12, 13, 16, 14, 15, 17});
  static const ad_sync two[] = {AD_SYNC_SHARD, AD_SYNC_ALL, AD_SYNC_SHARD, AD_SYNC_ALL};
  check_dealt(&(ad_leaf_deal){24, 3, 2, 4, two, 1},
              (int64_t[]){0, 2, 12, 14, 1, 3, 13, 15, 4, 6, 16, 18, 5, 7, 17, 19, 8, 10, 20, 22, 9, 11, 21, 23});
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_leaf_is_computed_once),
      cmocka_unit_test(members_of_each_collective_have_neighbouring_ranges),
      cmocka_unit_test(what_is_summed_in_this_order_is_the_whole_tree),
      cmocka_unit_test(sums_that_stay_local_are_of_neighbouring_leaves),
      cmocka_unit_test(where_rounds_are_scattered_a_round_has_neighbouring_leaves),
      cmocka_unit_test(replicas_are_outside_units_and_segments_outside_replicas),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
