/* Tests the search for a few addends with wrong counts: what it finds, what it never claims, and each number that it
 * compares, from both sides. */
#include <string.h>
#include "solve/sparse_fit.h"
#include "../made_parts.h"

enum { MOST = 40 };

/* The result of a search; counts of addends, in the order of made_parts. */
typedef struct searched {
  int explains;
  double counts[MOST], errors[MOST];
} searched;

static searched search(made_parts *m, const double *expected) {
  searched found = {0};
  ad_judged judged = {.part = &m->part, .why = {.counts = found.counts, .errors = found.errors}};
  assert_in_range(m->count, 1, MOST);
  assert_int_equal(ad_try_sparse_fit(&m->parts, expected, &judged), AD_OK);
  found.explains = judged.why.explains;
  return found;
}

static const double ones[MOST] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                  1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Checks that the search finds the counts that made the sum. */
static void finds(made_parts *m, const double *expected, const double *counts) {
  sum_up(m, counts);
  searched found = search(m, expected);
  assert_int_equal(found.explains, 1);
  for (size_t c = 0; c < m->count; c++) {
    assert_true(fabs(found.counts[c] - counts[c]) < 1e-12);
    assert_true(found.errors[c] == 0);
  }
}

static void does_not_find(made_parts *m, const double *expected, const double *counts) {
  sum_up(m, counts);
  assert_int_equal(search(m, expected).explains, 0);
}

/* ---- sets of addends ---- */

/* One addend, those of one rank, of one microbatch, and all together: expected with other divisors, and with a factor. */
static void sets_of_addends_are_found(void **state) {
  enum { RANKS = 3, MICROBATCHES = 4, COUNT = RANKS * MICROBATCHES };
  made_parts m;
  make_parts(&m, RANKS, MICROBATCHES, 600);
  m.param.expect = 0.5;
  fill_apart(&m);
  double expected[COUNT];
  for (int c = 0; c < COUNT; c++) expected[c] = 0.5 + 0.25 * (c / MICROBATCHES);
  for (int kind = 0; kind < 4; kind++) {
    double counts[COUNT];
    memcpy(counts, expected, sizeof counts);
    for (int c = 0; c < COUNT; c++) {
      int is_one = kind == 0 ? c == 5 : kind == 1 ? c / MICROBATCHES == 2 : kind == 2 ? c % MICROBATCHES == 3 : 1;
      if (is_one) counts[c] *= kind == 1 ? 0 : 2;
    }
    finds(&m, expected, counts);
  }
  drop_parts(&m);
}

/* An addend that is 0 in every element has any count. */
static void the_count_of_nothing_is_not_known(void **state) {
  made_parts m;
  double counts[5] = {1, 2, 1, 1, 1};
  make_parts(&m, 5, 1, 600);
  fill_apart(&m);
  memset(m.values + 3 * m.elements, 0, m.elements * sizeof *m.values);
  sum_up(&m, counts);
  searched found = search(&m, ones);
  assert_int_equal(found.explains, 1);
  assert_true(isinf(found.errors[3]) && found.errors[1] == 0);
  drop_parts(&m);
}

/* One factor on all addends, a simple number or not. */
static void one_factor_on_all_is_found(void **state) {
  static const double factors[] = {0.5, 0.7, 3};
  made_parts m;
  make_parts(&m, 2, 2, 600);
  fill_apart(&m);
  for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
    double counts[4];
    for (int c = 0; c < 4; c++) counts[c] = factors[f];
    sum_up(&m, counts);
    searched found = search(&m, ones);
    assert_int_equal(found.explains, 1);
    for (int c = 0; c < 4; c++) assert_true(fabs(found.counts[c] - factors[f]) < 1e-9);
  }
  drop_parts(&m);
}

/* ---- an explanation holds for every element ---- */

/* The search looks at the first 512 elements. A sum that differs from what it finds there in one element behind them,
 * or before, is not explained. */
static void an_explanation_holds_for_every_element(void **state) {
  static const size_t places[] = {0, 7, 8, 63, 64, 511, 512, 1000, AD_ROWS - 1, AD_ROWS, AD_ROWS + 99};
  made_parts m;
  double counts[6] = {1, 1, 0, 1, 1, 1};
  make_parts(&m, 6, 1, AD_ROWS + 100);
  fill_apart(&m);
  finds(&m, ones, counts);
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    m.sum[places[i]] += 1e-3;
    assert_int_equal(search(&m, ones).explains, 0);
    m.sum[places[i]] -= 1e-3;
    assert_int_equal(search(&m, ones).explains, 1);
  }
  drop_parts(&m);
}

/* Of a factor on all addends the same. */
static void a_factor_holds_for_every_element(void **state) {
  made_parts m;
  double counts[6] = {0.7, 0.7, 0.7, 0.7, 0.7, 0.7};
  make_parts(&m, 6, 1, 2000);
  fill_apart(&m);
  sum_up(&m, counts);
  m.sum[1999] += 1e-3;
  assert_int_equal(search(&m, ones).explains, 0);
  m.sum[1999] -= 1e-3;
  assert_int_equal(search(&m, ones).explains, 1);
  drop_parts(&m);
}

/* ---- the numbers that the search compares ---- */

/* Four steps change four addends; a fifth is not found. */
static void four_mistakes_are_found_and_no_five(void **state) {
  enum { ADDENDS = 20 };
  made_parts m;
  double counts[ADDENDS], expected[ADDENDS];
  make_parts(&m, ADDENDS, 1, 600);
  fill_apart(&m);
  for (int c = 0; c < ADDENDS; c++) counts[c] = expected[c] = 0.5 + c % 2;
  for (int wrong = 1; wrong <= 6; wrong++) {
    counts[3 * wrong] *= 1 + wrong;
    if (wrong <= 4)
      finds(&m, expected, counts);
    else
      does_not_find(&m, expected, counts);
  }
  drop_parts(&m);
}

/* Addends that have no element in common: the projection on the wrong one is as many standard errors as the square root
 * of the number of elements, whatever the bug. Up to eight it may be chance. */
static void eight_standard_errors_are_chance(void **state) {
  for (size_t elements = 62; elements <= 66; elements += 4) {
    made_parts m;
    double counts[3] = {1, 2, 1};
    make_parts(&m, 3, 1, elements);
    fill_apart(&m);
    if (elements < 64)
      does_not_find(&m, ones, counts);
    else
      finds(&m, ones, counts);
    drop_parts(&m);
  }
}

/* A count within a quarter of a number that a bug typically produces is taken for that number, and is not found if it
 * is another. */
static void a_count_within_a_quarter_is_taken_for_a_simple_one(void **state) {
  made_parts m;
  make_parts(&m, 3, 1, 600);
  fill_apart(&m);
  for (int side = -1; side <= 1; side += 2) {
    double counts[3] = {1, 3 + side * 0.26, 1};
    finds(&m, ones, counts);
    counts[1] = 3 + side * 0.24;
    does_not_find(&m, ones, counts);
  }
  drop_parts(&m);
}

/* ---- whether single counts differ ---- */

static int differ(made_parts *m, const double *counts) {
  int out = -1;
  sum_up(m, counts);
  assert_int_equal(ad_sparse_fit_differs(&m->parts, ones, &m->part, &out), AD_OK);
  return out;
}

/* A count that is off by d, of an addend that has no element in common with others, has the error d over the square
 * root of the number of elements: d may be 1e-4 and eight such errors. */
static void a_count_differs_by_more_than_its_tolerance(void **state) {
  enum { WIDE = 2 * AD_ROWS };
  made_parts m;
  make_parts(&m, 3, 1, WIDE);
  fill_apart(&m);
  double bound = 1e-4 / (1 - 8 / sqrt(WIDE));
  for (int c = 0; c < 3; c++)
    for (int side = -1; side <= 1; side += 2) {
      double counts[3] = {1, 1, 1};
      counts[c] = 1 + side * 0.99 * bound;
      assert_int_equal(differ(&m, counts), 0);
      counts[c] = 1 + side * 1.01 * bound;
      assert_int_equal(differ(&m, counts), 1);
    }
  assert_int_equal(differ(&m, ones), 0);
  drop_parts(&m);
}

/* The roundings of a narrow dtype widen a count's error. A rounding u of each addend leaves u times its square in its
 * product with the sum: the error is u times the root of the sum of fourth powers, over the squared length. */
static void rounding_widens_a_counts_error(void **state) {
  enum { WIDE = 3 * 1024 };
  made_parts m;
  double u = 0x1p-8; /* the unit roundoff of bf16 */
  make_parts(&m, 3, 1, WIDE);
  m.param.reduce = AD_BF16;
  for (size_t i = 0; i < WIDE; i++) m.values[i % 3 * WIDE + i] = 1;
  double bound = 1e-4 + 8 * u / sqrt(1024);
  for (int side = -1; side <= 1; side += 2) {
    double counts[3] = {1, 1, 1};
    counts[1] = 1 + side * 0.99 * bound;
    assert_int_equal(differ(&m, counts), 0);
    counts[1] = 1 + side * 1.01 * bound;
    assert_int_equal(differ(&m, counts), 1);
  }
  drop_parts(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(sets_of_addends_are_found),
      cmocka_unit_test(the_count_of_nothing_is_not_known),
      cmocka_unit_test(one_factor_on_all_is_found),
      cmocka_unit_test(an_explanation_holds_for_every_element),
      cmocka_unit_test(a_factor_holds_for_every_element),
      cmocka_unit_test(four_mistakes_are_found_and_no_five),
      cmocka_unit_test(eight_standard_errors_are_chance),
      cmocka_unit_test(a_count_within_a_quarter_is_taken_for_a_simple_one),
      cmocka_unit_test(a_count_differs_by_more_than_its_tolerance),
      cmocka_unit_test(rounding_widens_a_counts_error),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
