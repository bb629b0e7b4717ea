/* Tests the bound within which a sum is a combination of addends: every number of it, from both sides, and at every
 * place where an element could be passed over. */
#include <float.h>
#include <string.h>
#include "base/roundoff.h"
#include "../made_parts.h"
#include "addend/helpers.h"

/* ---- the bound ---- */

/* A sum of n addends: n + 1 roundings of the additions' dtype, one of the array's for each microbatch, n + 2 of f64. */
static void a_bound_has_a_rounding_for_each_addition_and_each_microbatch(void **state) {
  static const struct {
    ad_rounding rounding;
    size_t n;
    double share;
  } bounds[] = {{{.reduce = 0.5, .microbatches = 3}, 0, 0.5},
                {{.reduce = 0.5, .microbatches = 3}, 7, 4},
                {{.sum = 0.25, .microbatches = 1}, 7, 0.25},
                {{.sum = 0.25, .microbatches = 6}, 7, 1.5},
                {{.reduce = 0.5, .sum = 0.25, .microbatches = 6}, 1, 2.5},
                {{.smallest = 1, .inside = 1, .microbatches = 1}, 1, 3 * 0x1p-53},
                {{.microbatches = 1}, 0, 2 * 0x1p-53}};
  for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++) {
    double share = ad_rounding_share(&bounds[i].rounding, bounds[i].n), all = bounds[i].share;
    if (all > 0.1) all += (double)(bounds[i].n + 2) * 0x1p-53;
    assert_true(fabs(share / all - 1) < 4 * DBL_EPSILON);
  }
}

/* The dtypes of the addends, of the sum and of the reduction (0: unknown), and the dtype whose rounding each addition
 * has and that with the largest smallest number. */
static void the_roundings_are_those_of_the_dtypes(void **state) {
  static const struct {
    ad_dtype addends, sum, reduce, additions, smallest;
    double inside;
  } dtypes[] = {{AD_F32, AD_F32, AD_F32, AD_F32, AD_F32, 0},  {AD_F32, AD_F32, AD_BF16, AD_BF16, AD_BF16, 0},
                {AD_BF16, AD_F32, AD_F32, AD_F32, AD_F32, 0}, {AD_BF16, AD_F32, 0, AD_BF16, AD_BF16, 0},
                {AD_F32, AD_BF16, 0, AD_BF16, AD_BF16, 3},    {AD_F32, AD_BF16, AD_F32, AD_F32, AD_BF16, 0},
                {AD_F16, AD_F32, 0, AD_F16, AD_F16, 0},       {AD_F64, AD_F64, AD_F16, AD_F16, AD_F16, 5},
                {AD_F64, AD_F64, 0, AD_F64, AD_F64, 0}};
  for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
    made_parts m;
    make_parts(&m, 2, 5, 3);
    for (size_t c = 0; c < m.count; c++) m.tensors[c].dtype = dtypes[i].addends;
    m.tensors[m.count].dtype = dtypes[i].sum;
    m.param.reduce = dtypes[i].reduce;
    ad_members_measure(&m.parts, &m.members);
    m.members.inside = dtypes[i].inside;
    ad_rounding rounding = ad_rounding_of(&m.parts, &m.part);
    assert_true(rounding.sum == ad_unit_roundoff(dtypes[i].sum));
    assert_true(rounding.reduce == ad_unit_roundoff(dtypes[i].additions));
    assert_true(rounding.smallest == ad_smallest_number(dtypes[i].smallest));
    assert_true(rounding.inside == dtypes[i].inside);
    assert_int_equal(rounding.microbatches, 5);
    drop_parts(&m);
  }
}

/* One addend's dtype is enough: the widest rounding of all counts, wherever the addend stands. */
static void one_narrow_addend_widens_the_bound(void **state) {
  for (size_t narrow = 0; narrow < 4; narrow++) {
    made_parts m;
    make_parts(&m, 4, 1, 3);
    m.tensors[narrow].dtype = AD_BF16;
    ad_members_measure(&m.parts, &m.members);
    assert_true(ad_rounding_of(&m.parts, &m.part).reduce == ad_unit_roundoff(AD_BF16));
    drop_parts(&m);
  }
}

/* ---- comparing with the bound ---- */

/* Elements of a sum; the last ones of each block, and the first ones of the next. */
enum { ELEMENTS = 2 * AD_ROWS + 3 };
static const size_t places[] = {0, 1, 7, 8, 63, 64, 511, 512, AD_ROWS - 1, AD_ROWS, 2 * AD_ROWS, ELEMENTS - 1};

typedef ad_status test_of(const ad_parts *, const ad_part *, const double *, double, const ad_rounding *, ad_fitness *);

/* Whether the sum holds if `off` is added to its element `at`. */
static int holds_beside(const made_parts *m, test_of *test, const double *counts, const ad_rounding *rounding,
                        size_t at, double off) {
  ad_fitness fitness = {.holds = -1};
  double kept = m->sum[at];
  m->sum[at] += off;
  assert_int_equal(test(&m->parts, &m->part, counts, m->param.expect, rounding, &fitness), AD_OK);
  m->sum[at] = kept;
  return fitness.holds;
}

/* Checks that `bound` is how far an element may be off, in both directions. */
static void bounds(const made_parts *m, const double *counts, const ad_rounding *rounding, size_t at, double bound) {
  for (int side = -1; side <= 1; side += 2) {
    assert_int_equal(holds_beside(m, ad_part_test, counts, rounding, at, side * bound * 0.999), 1);
    assert_int_equal(holds_beside(m, ad_part_test, counts, rounding, at, side * bound * 1.001), 0);
  }
}

/* Addends 1, 2, 4, ... in every element; a combination with counts below 0 and of 0. */
static void a_sum_may_be_off_by_its_bound(void **state) {
  static const double counts[] = {1, -2, 0, 0.5, 3}; /* 4 of them are not 0 */
  made_parts m;
  make_parts(&m, 5, 1, ELEMENTS);
  m.param.expect = -0.25;
  for (size_t c = 0; c < m.count; c++)
    for (size_t i = 0; i < m.elements; i++) m.values[c * m.elements + i] = ldexp(i % 2 ? 1 : -1, (int)c);
  sum_up(&m, counts);
  double size = 0.25 * (1 + 4 + 0.5 * 8 + 3 * 16);
  ad_rounding reduce = {.reduce = 1e-3, .microbatches = 1}, stored = {.sum = 1e-3, .microbatches = 1},
              smallest = {.smallest = 1e-3, .microbatches = 1}, inside = {.reduce = 1e-3, .inside = 100};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    bounds(&m, counts, &reduce, places[i], 5 * 1e-3 * size);
    bounds(&m, counts, &stored, places[i], 1e-3 * size);
    bounds(&m, counts, &smallest, places[i], 5 * 1e-3);
    bounds(&m, counts, &inside, places[i], 5 * 1e-3 * size + 0.25 * 100 * 1e-3);
  }
  stored.microbatches = 4;
  bounds(&m, counts, &stored, 1, 4 * 1e-3 * size);
  drop_parts(&m);
}

/* The quick test sees the first 64 elements, and no others, whether addends are few or many. */
static void the_first_elements_are_tested_alone(void **state) {
  ad_rounding rounding = {.reduce = 1e-3, .microbatches = 1};
  for (int ranks = 15; ranks <= 18; ranks++) {
    double counts[18];
    made_parts m;
    make_parts(&m, ranks, 1, 70);
    for (size_t c = 0; c < m.count; c++)
      for (size_t i = 0; i < m.elements; i++) m.values[c * m.elements + i] = 1;
    for (int c = 0; c < ranks; c++) counts[c] = 1;
    sum_up(&m, counts);
    double bound = (ranks + 1) * 1e-3 * ranks;
    for (size_t at = 0; at < m.elements; at++) {
      assert_int_equal(holds_beside(&m, ad_part_test_first, counts, &rounding, at, 0.999 * bound), 1);
      assert_int_equal(holds_beside(&m, ad_part_test_first, counts, &rounding, at, 1.001 * bound), at >= 64);
    }
    drop_parts(&m);
  }
}

/* The quick test keeps the first elements of the addends that it read: those of another part are read anew. */
static void the_first_elements_of_another_part_are_its_own(void **state) {
  enum { RANKS = 20, HALF = 70 };
  ad_rounding rounding = {.reduce = 1e-9, .microbatches = 1};
  double counts[RANKS];
  made_parts m;
  make_parts(&m, RANKS, 1, 2 * HALF);
  for (size_t c = 0; c < m.count; c++)
    for (size_t i = 0; i < m.elements; i++) m.values[c * m.elements + i] = i < HALF ? 1 : 2;
  for (int c = 0; c < RANKS; c++) counts[c] = 1;
  sum_up(&m, counts);
  m.part.count = HALF;
  m.part.box.count[0] = m.term.box.count[0] = HALF;
  assert_int_equal(holds_beside(&m, ad_part_test_first, counts, &rounding, 0, 0), 1);
  m.part.box.first[0] = m.term.box.first[0] = HALF;
  m.tensors[m.count].data = m.sum + HALF;
  assert_int_equal(holds_beside(&m, ad_part_test_first, counts, &rounding, HALF, 0), 1);
  assert_int_equal(holds_beside(&m, ad_part_test_first, counts, &rounding, HALF, 0.1), 0);
  made_parts others; /* other ranks' addends of the same elements are all 0 */
  make_parts(&others, RANKS, 1, 2 * HALF);
  ad_members both[] = {m.members, others.members};
  m.parts.members = both;
  ad_release(m.firsts.values);
  m.firsts = (ad_firsts){0};
  for (m.part.members = 1; m.part.members < 2; m.part.members--)
    assert_int_equal(holds_beside(&m, ad_part_test_first, counts, &rounding, HALF, 0), !m.part.members);
  drop_parts(&others);
  drop_parts(&m);
}

/* Sums that end with a block of elements, one before it and one after it. */
static void the_last_element_is_compared(void **state) {
  static const double counts[] = {1};
  ad_rounding rounding = {.reduce = 1e-9, .microbatches = 1};
  for (size_t elements = AD_ROWS - 1; elements <= AD_ROWS + 1; elements++) {
    made_parts m;
    make_parts(&m, 1, 1, elements);
    for (size_t i = 0; i < elements; i++) m.values[i] = m.sum[i] = 1;
    assert_int_equal(holds_beside(&m, ad_part_test, counts, &rounding, elements - 1, 0), 1);
    assert_int_equal(holds_beside(&m, ad_part_test, counts, &rounding, elements - 1, 0.1), 0);
    drop_parts(&m);
  }
}

/* Addends of 0 give nothing but 0, and numbers that overflow give nothing. */
static void what_has_no_size_has_no_slack(void **state) {
  static const double counts[] = {1, 1};
  ad_rounding rounding = {.reduce = 1e-3, .microbatches = 1};
  made_parts m;
  make_parts(&m, 2, 1, 3);
  assert_int_equal(holds_beside(&m, ad_part_test, counts, &rounding, 2, 0), 1);
  assert_int_equal(holds_beside(&m, ad_part_test, counts, &rounding, 2, DBL_MIN), 0);
  for (size_t i = 0; i < 3; i++) {
    m.values[i] = m.values[3 + i] = i == 1 ? DBL_MAX : 1;
    m.sum[i] = 2;
  }
  assert_int_equal(holds_beside(&m, ad_part_test, counts, &rounding, 1, DBL_MAX), 0);
  m.values[1] = m.values[4] = 1;
  assert_int_equal(holds_beside(&m, ad_part_test, counts, &rounding, 1, 0), 1);
  drop_parts(&m);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_bound_has_a_rounding_for_each_addition_and_each_microbatch),
      cmocka_unit_test(the_roundings_are_those_of_the_dtypes),
      cmocka_unit_test(one_narrow_addend_widens_the_bound),
      cmocka_unit_test(a_sum_may_be_off_by_its_bound),
      cmocka_unit_test(the_first_elements_are_tested_alone),
      cmocka_unit_test(the_first_elements_of_another_part_are_its_own),
      cmocka_unit_test(the_last_element_is_compared),
      cmocka_unit_test(what_has_no_size_has_no_slack),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
