/* Tests which rank gets which matrix: each matrix is in one place, empty places are in the last round alone, and the
 * busiest rank has at most the mean plus the largest matrix. Tests the cost of the ways and their choice. Tests
 * owners.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "addend/helpers.h"
#include "draw.h"
#include "optim/owners.h"

enum { RANKS = 12, MATRICES = 40, STACKS = 3, SLOTS = MATRICES + RANKS };

/* ---- who gets which matrix ---- */

/* Deals one stack, and checks that each matrix is owned once, that only the last round has empty places, and that loads
 * grew by what the ranks got. */
static void deal(int64_t matrices, double operations, int64_t ranks, double *load) {
  int64_t owned[SLOTS], times[MATRICES] = {0};
  double before[RANKS];
  memcpy(before, load, sizeof before);
  memset(owned, 0x55, sizeof owned);
  ad_owners_deal(matrices, operations, ranks, load, owned);
  int64_t slots = ad_owners_rounds(matrices, ranks) * ranks;
  assert_true(slots >= matrices && slots < matrices + ranks);
  for (int64_t slot = 0; slot < slots; slot++) {
    if (owned[slot] < 0) {
      assert_true(owned[slot] == -1 && slot >= matrices / ranks * ranks);
      continue;
    }
    assert_true(owned[slot] < matrices && times[owned[slot]]++ == 0);
    before[slot % ranks] += operations;
  }
  for (int64_t matrix = 0; matrix < matrices; matrix++) assert_int_equal(times[matrix], 1);
  assert_int_equal(owned[slots], 0x5555555555555555);
  for (int64_t rank = 0; rank < ranks; rank++) assert_true(load[rank] == before[rank]);
}

/* Deals stacks by falling operations; the largest load is at most the mean plus the largest matrix. */
static void check_bound(const int64_t *matrices, const double *operations, int stacks, int64_t ranks) {
  double load[RANKS] = {0}, sum = 0, most = 0, largest = 0;
  for (int s = 0; s < stacks; s++) {
    deal(matrices[s], operations[s], ranks, load);
    if (matrices[s] && operations[s] > largest) largest = operations[s];
    sum += (double)matrices[s] * operations[s];
  }
  for (int64_t rank = 0; rank < ranks; rank++)
    if (load[rank] > most) most = load[rank];
  if (most > sum / (double)ranks + largest)
    fail_msg("the busiest of %lld ranks has %g, the mean is %g, the largest matrix %g", (long long)ranks, most,
             sum / (double)ranks, largest);
}

static void the_busiest_rank_has_at_most_the_mean_and_one_matrix(void **state) {
  static const double falling[][STACKS] = {{1, 1, 1}, {2, 1, 1}, {3, 2, 1}, {7, 3, 2}, {7, 7, 1}};
  for (int64_t ranks = 1; ranks <= 7; ranks++)
    for (int64_t all = 0; all < 9 * 9 * 9; all++)
      for (size_t f = 0; f < sizeof falling / sizeof *falling; f++)
        check_bound((const int64_t[]){all % 9, all / 9 % 9, all / 81}, falling[f], STACKS, ranks);
}

static void drawn_stacks_keep_the_bound(void **state) {
  draw cases = draw_cases("stacks", 4000, 40, 400);
  for (int i = 0; i < cases.count; i++) {
    if (!is_drawn(&cases, i)) continue;
    int64_t matrices[STACKS];
    double operations[STACKS], last = 1000;
    for (int s = 0; s < STACKS; s++) {
      matrices[s] = (int64_t)(ad_random_uniform(5, (uint64_t)i, (uint64_t)s) * (MATRICES + 1));
      last = operations[s] = (double)(int64_t)(1 + ad_random_uniform(6, (uint64_t)i, (uint64_t)s) * (last - 1));
    }
    check_bound(matrices, operations, STACKS, 1 + i % RANKS);
  }
}

/* A floor cut would give the last rank one more matrix of every stack. */
static void what_is_left_of_several_stacks_goes_to_different_ranks(void **state) {
  double load[4] = {0};
  for (int stack = 0; stack < 4; stack++) {
    int64_t owned[8];
    ad_owners_deal(5, 10, 4, load, owned);
    for (int64_t rank = 0; rank < 4; rank++) {
      assert_int_equal(owned[rank], rank);
      assert_int_equal(owned[4 + rank], rank == stack ? 4 : -1);
    }
  }
  for (int rank = 0; rank < 4; rank++) assert_true(load[rank] == 50);
}

/* ---- the cost of ways ---- */

/* Six matrices of 3000 bytes on two replicas of three shards. */
static const ad_way_case six = {
    .matrices = 6, .bytes = 3000, .operations = 12e6, .scratch = 500, .shards = 3, .replicas = 2};

static void costs_count_what_the_busiest_rank_receives_and_computes(void **state) {
  ad_way_cost gathered = ad_way_cost_of(&six, AD_WAY_GATHERED), dealt = ad_way_cost_of(&six, AD_WAY_DEALT);
  ad_way_cost replicas = ad_way_cost_of(&six, AD_WAY_DEALT_TO_REPLICAS);
  assert_float_equal(gathered.bytes, 6 * 2000, 1e-9);  // two of three shards of each matrix
  assert_true(gathered.operations == 6 * 12e6);
  assert_float_equal(dealt.bytes, 2 * (2000 + 2000), 1e-9);  // two rounds, there and back
  assert_true(dealt.operations == 2 * 12e6);
  assert_float_equal(replicas.bytes, 2000 + 2000 + 3000, 1e-9);  // one round, and what the other replica computed
  assert_true(replicas.operations == 12e6);
  assert_true(dealt.seconds > dealt.operations / 4e10 && dealt.seconds < gathered.seconds);
  ad_way_case wide = six;
  wide.wide = 1;
  assert_true(ad_way_cost_of(&wide, AD_WAY_DEALT).seconds > dealt.seconds);
  assert_true(gathered.memory == 2 * 3000 + 500 && dealt.memory == 2 * 3000 + 500);
  assert_true(replicas.memory == 3 * 3000 + 500);  // the results of the other replica as well
}

static void empty_places_cost_as_much_as_matrices(void **state) {
  ad_way_case seven = six;
  seven.matrices = 7;
  ad_way_cost dealt = ad_way_cost_of(&seven, AD_WAY_DEALT);
  assert_float_equal(dealt.bytes, 3 * (2000 + 2000), 1e-9);
  assert_true(dealt.operations == 3 * 12e6);
}

static void the_cheapest_way_depends_on_products_and_bytes(void **state) {
  assert_int_equal(ad_way_cheapest(&six), AD_WAY_DEALT_TO_REPLICAS);
  ad_way_case few_products = six;
  few_products.operations = 1;
  few_products.replicas = 4;  // each would receive what three others computed
  assert_int_equal(ad_way_cheapest(&few_products), AD_WAY_DEALT);
  ad_way_case one = few_products;
  one.matrices = 1;  // there and back is more than there
  assert_int_equal(ad_way_cheapest(&one), AD_WAY_GATHERED);
  ad_way_case alone = six;
  alone.shards = alone.replicas = 1;  // all ways are the same
  assert_int_equal(ad_way_cheapest(&alone), AD_WAY_GATHERED);
  ad_way_case many_replicas = six;
  many_replicas.operations = 1e15;
  many_replicas.replicas = AD_DEALT_REPLICAS_MAX;
  assert_int_equal(ad_way_cheapest(&many_replicas), AD_WAY_DEALT_TO_REPLICAS);
  many_replicas.replicas++;
  assert_int_equal(ad_way_cheapest(&many_replicas), AD_WAY_DEALT);
}

static void more_matrices_cost_no_less(void **state) {
  for (int way = AD_WAY_GATHERED; way < AD_WAYS; way++)
    for (int64_t shards = 1; shards <= 5; shards++)
      for (int64_t replicas = 1; replicas <= 3; replicas++) {
        double last = 0;
        for (int64_t matrices = 0; matrices <= MATRICES; matrices++) {
          ad_way_case c = {matrices, 4096, 1e6, 0, 0, shards, replicas};
          ad_way_cost cost = ad_way_cost_of(&c, (ad_muon_way)way);
          assert_true(cost.seconds >= last);
          last = cost.seconds;
        }
      }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_busiest_rank_has_at_most_the_mean_and_one_matrix),
      cmocka_unit_test(drawn_stacks_keep_the_bound),
      cmocka_unit_test(what_is_left_of_several_stacks_goes_to_different_ranks),
      cmocka_unit_test(costs_count_what_the_busiest_rank_receives_and_computes),
      cmocka_unit_test(empty_places_cost_as_much_as_matrices),
      cmocka_unit_test(the_cheapest_way_depends_on_products_and_bytes),
      cmocka_unit_test(more_matrices_cost_no_less),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
