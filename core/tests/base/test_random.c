/* Tests the random numbers: Philox's published answers, the moments of each distribution, and that numbers do not
 * depend on the order in which they are drawn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include "base/random.h"

/* The philox4x32-10 lines of Random123's kat_vectors. Their words: index low, high, stream low, high; seed low, high;
 * then the answer, whose first two words ad_random_bits returns. */
static void the_published_answers_come_out(void **state) {
  assert_true(ad_random_bits(0, 0, 0) == 0xe169c58d6627e8d5);
  assert_true(ad_random_bits(UINT64_MAX, UINT64_MAX, UINT64_MAX) == 0x41c83b0e408f276d);
  assert_true(ad_random_bits(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88) == 0x94fdccebd16cfe09);
}

static void seed_stream_and_index_each_change_the_number(void **state) {
  uint64_t seen[7];
  int n = 0;
  seen[n++] = ad_random_bits(1, 2, 3);
  seen[n++] = ad_random_bits(1 + (1ull << 32), 2, 3);
  seen[n++] = ad_random_bits(2, 2, 3);
  seen[n++] = ad_random_bits(1, 3, 3);
  seen[n++] = ad_random_bits(1, 2 + (1ull << 40), 3);
  seen[n++] = ad_random_bits(1, 2, 4);
  seen[n++] = ad_random_bits(1, 2, 3 + (1ull << 50));
  for (int i = 0; i < n; i++)
    for (int j = 0; j < i; j++) assert_true(seen[i] != seen[j]);
  assert_true(seen[0] == ad_random_bits(1, 2, 3));
}

enum { DRAWS = 100000 };

static void uniform_numbers_fill_the_unit_interval(void **state) {
  int count[10] = {0};
  for (uint64_t i = 0; i < DRAWS; i++) {
    double value = ad_random_uniform(5, 6, i);
    assert_true(value >= 0 && value < 1);
    count[(int)(value * 10)]++;
  }
  for (int i = 0; i < 10; i++) assert_true(abs(count[i] - DRAWS / 10) < 500);  // within five standard deviations
}

static void normal_numbers_have_the_normal_moments(void **state) {
  double power[5] = {0};
  for (uint64_t i = 0; i < DRAWS; i++) {
    double value = ad_random_normal(7, 8, i), product = 1;
    assert_true(isfinite(value));
    for (int k = 0; k < 5; k++, product *= value) power[k] += product / DRAWS;
  }
  assert_true(fabs(power[1]) < 0.02);
  assert_true(fabs(power[2] - 1) < 0.03);
  assert_true(fabs(power[3]) < 0.07);
  assert_true(fabs(power[4] - 3) < 0.2);
}

static void neighbours_are_uncorrelated(void **state) {
  double by_index = 0, by_stream = 0;
  for (uint64_t i = 0; i < DRAWS; i++) {
    by_index += ad_random_normal(1, 1, i) * ad_random_normal(1, 1, i + 1) / DRAWS;
    by_stream += ad_random_normal(1, 1, i) * ad_random_normal(1, 2, i) / DRAWS;
  }
  assert_true(fabs(by_index) < 0.02);
  assert_true(fabs(by_stream) < 0.02);
}

/* Streams are XXH64 hashes with seed 0; that of "" is the published ef46db3751d8e999. */
static void a_stream_is_the_hash_of_its_name(void **state) {
  assert_int_equal(ad_random_stream(""), 0xef46db3751d8e999u);
  assert_true(ad_random_stream("init") != ad_random_stream("dropout"));
}

static void a_number_below_n_is_one_of_n(void **state) {
  int seen[3] = {0};
  for (uint64_t i = 0; i < 300; i++) seen[ad_random_below(1, 2, i, 3)]++;
  for (int i = 0; i < 3; i++) assert_true(seen[i] > 60);  // five standard deviations below 100
  assert_int_equal(ad_random_below(1, 2, 3, 1), 0);
  assert_int_equal(ad_random_below(1, 2, 3, 0), 0);
  assert_int_equal(ad_random_below(1, 2, 3, -5), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_published_answers_come_out),
      cmocka_unit_test(seed_stream_and_index_each_change_the_number),
      cmocka_unit_test(uniform_numbers_fill_the_unit_interval),
      cmocka_unit_test(normal_numbers_have_the_normal_moments),
      cmocka_unit_test(neighbours_are_uncorrelated),
      cmocka_unit_test(a_number_below_n_is_one_of_n),
      cmocka_unit_test(a_stream_is_the_hash_of_its_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
