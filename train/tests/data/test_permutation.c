/* Tests the pseudo-random permutation of n numbers: each number comes once, whatever n is; another key gives another
 * order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/random.h"
#include "data/permutation.h"

static void is_a_bijection(uint64_t key, int64_t n) {
  unsigned char *seen = calloc((size_t)n, 1);
  assert_non_null(seen);
  for (int64_t i = 0; i < n; i++) {
    int64_t to = ad_permuted(key, n, i);
    if (to < 0 || to >= n || seen[to])
      fail_msg("n %lld, key %llu: %lld goes to %lld", (long long)n, (unsigned long long)key, (long long)i,
               (long long)to);
    seen[to] = 1;
  }
  free(seen);
}

static void every_number_is_reached_once(void **state) {
  const int64_t large[] = {251, 256, 257, 1009, 1024, 1025, 4095, 4096, 65536, 65537, 99991, 1 << 20, 1000003};
  for (int64_t n = 1; n <= 130; n++)
    for (uint64_t key = 0; key < 7; key++) is_a_bijection(key * 0x9e3779b97f4a7c15U, n);
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) is_a_bijection(i, large[i]);
}

/* For too many numbers to count: results stay in range, and no two of some are equal. */
static int by_value(const void *a, const void *b) {
  int64_t one = *(const int64_t *)a, other = *(const int64_t *)b;
  return (one > other) - (one < other);
}

static void large_numbers_stay_in_their_range_and_do_not_meet(void **state) {
  enum { SOME = 4000 };
  const int64_t sizes[] = {((int64_t)1 << 31) - 1, ((int64_t)1 << 40) + 1, ((int64_t)1 << 61) - 1, (int64_t)1 << 62};
  static int64_t to[SOME];
  for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
    for (int64_t i = 0; i < SOME; i++) to[i] = ad_permuted(5, sizes[s], i % 2 ? i : sizes[s] - 1 - i);
    qsort(to, SOME, sizeof *to, by_value);
    assert_true(to[0] >= 0 && to[SOME - 1] < sizes[s]);
    for (int i = 1; i < SOME; i++) assert_true(to[i] > to[i - 1]);
    // the results are spread over the range
    assert_true(to[SOME / 2] > sizes[s] / 3 && to[SOME / 2] < sizes[s] / 3 * 2);
  }
}

static void other_keys_give_other_orders(void **state) {
  enum { N = 1000 };
  int same = 0, fixed = 0, neighbours = 0;
  for (int64_t i = 0; i < N; i++) {
    int64_t to = ad_permuted(1, N, i);
    same += to == ad_permuted(2, N, i);
    fixed += to == i;
    neighbours += i && to == ad_permuted(1, N, i - 1) + 1;
  }
  assert_in_range(same, 0, 9);  // a random permutation keeps 1 number at its place, with standard deviation 1
  assert_in_range(fixed, 0, 9);
  assert_in_range(neighbours, 0, 9);
}

/* Over many keys each number comes to each place equally often, also for small n, where numbers are drawn repeatedly
 * until one is in range. */
static void every_place_is_as_likely(void **state) {
  enum { KEYS = 6000 };
  for (int64_t n = 2; n <= 7; n++) {
    int count[7][7] = {0};
    for (uint64_t key = 0; key < KEYS; key++)
      for (int64_t i = 0; i < n; i++) count[i][ad_permuted(ad_random_bits(3, 4, key), n, i)]++;
    for (int64_t i = 0; i < n; i++)
      for (int64_t to = 0; to < n; to++) assert_in_range(count[i][to], KEYS / n * 0.85, KEYS / n * 1.15);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_number_is_reached_once),
      cmocka_unit_test(large_numbers_stay_in_their_range_and_do_not_meet),
      cmocka_unit_test(other_keys_give_other_orders),
      cmocka_unit_test(every_place_is_as_likely),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
