/* Tests what is decided of the parts of a sum: whether each is the expected combination, which counts explain it
 * otherwise, and whether replicas differ by more than rounding; each number that is compared, from both sides. */
#include <string.h>
#include "solve/fit.h"
#include "solve/hypotheses.h"
#include "solve/known.h"
#include "files/safetensors.h"
#include "../made_parts.h"

static const int64_t holders[] = {0, 1};

/* Judges all parts where fits have taken `spent` multiplications before. Addends beside those of the members are in no
 * file. Returns how many explanations are kept for later parameters. */
static size_t judge_after(made_parts *m, double spent, ad_judged *list) {
  static const char nothing[] = "\2\0\0\0\0\0\0\0{}";
  ad_known known;
  ad_safetensors *file;
  assert_int_equal(ad_safetensors_parse(nothing, sizeof nothing - 1, "nothing", &file), AD_OK);
  m->file.tensors = file;
  m->dump.params = &m->param;
  m->dump.param_count = 1;
  assert_int_equal(ad_known_create(&m->dump, &known), AD_OK);
  known.alone = 1;
  known.fitted = known.weak = spent;
  assert_int_equal(ad_judge_parts(&m->parts, &known, list), AD_OK);
  size_t kept = known.count;
  ad_known_destroy(&known);
  ad_safetensors_close(file);
  return kept;
}

static void judge(made_parts *m, ad_judged *list) { judge_after(m, 0, list); }

static void make_held_parts(made_parts *m, int ranks, size_t elements) {
  make_parts(m, ranks, 1, elements);
  m->part.holders = (int64_t *)(uintptr_t)holders;
  m->part.holder_count = 2;
}

static void finish(made_parts *m, ad_judged *list) {
  ad_judged_clear(&m->parts, list);
  drop_parts(m);
}

/* ---- counts ---- */

/* Counts near one that a bug typically produces become that one, where the fit allows it; all others stay as they were
 * fitted. */
static void counts_are_those_of_a_mistake_or_as_fitted(void **state) {
  enum { RANKS = 3 };
  static const double tried[] = {1,  0,        2,        1.0 / 3, 1.0 / 3 + 1e-3, 0.7,
                                 -1, 1 + 1e-3, 1 - 1e-3, 3,       1 + 1e-5,       0.5 - 1e-5};
  for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
    double counts[RANKS] = {1, tried[i], 1};
    made_parts m;
    ad_judged judged;
    make_parts(&m, RANKS, 1, 60);
    m.param.expect = 0.5;
    fill_apart(&m);
    sum_up(&m, counts);
    for (size_t e = 0; e < m.elements; e++) m.sum[e] *= 1 + 0x1p-52; /* a rounding */
    judge(&m, &judged);
    assert_int_equal(judged.holds, tried[i] == 1);
    if (!judged.holds) {
      int is_simple = tried[i] == ad_simple_count(&m.dump.mesh, tried[i]);
      assert_int_equal(judged.why.explains, 1);
      assert_int_equal(judged.why.rounded, 0);
      for (int c = 0; c < RANKS; c++) assert_true(fabs(judged.why.counts[c] - counts[c]) <= (is_simple ? 0 : 1e-12));
    }
    ad_judged_clear(&m.parts, &judged);
    drop_parts(&m);
  }
}

/* A sum whose elements are off by `off` times the unit roundoff of a dtype, up and down, is one that was rounded to
 * it, although the dump says f64. */
static ad_dtype rounded(double first, double off, double unit, int elements) {
  double counts[2] = {first, 0};
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, 2, (size_t)elements);
  fill_apart(&m);
  sum_up(&m, counts);
  for (int i = 0; i < elements; i++) m.sum[i] *= 1 + off * unit * (i / 2 % 2 ? -1 : 1);
  judge(&m, &judged);
  assert_int_equal(judged.holds, 0);
  assert_true(judged.why.errors[0] > 0);
  ad_dtype found = judged.why.explains ? judged.why.rounded : AD_F64;
  finish(&m, &judged);
  return found;
}

/* The sum has one addend: two roundings of the additions, and one of the array. */
static void a_sum_may_be_rounded_to_a_narrower_dtype(void **state) {
  static const double units[] = {0x1p-24, 0x1p-11, 0x1p-8};
  static const ad_dtype dtypes[] = {AD_F32, AD_F16, AD_BF16}, beyond[] = {AD_F16, AD_BF16, AD_F64};
  for (int i = 0; i < 3; i++) {
    assert_int_equal(rounded(1, 0.99 * 3, units[i], 400), dtypes[i]);
    assert_int_equal(rounded(1, 1.01 * 3, units[i], 400), beyond[i]);
  }
}

/* A count that no bug typically produces is fitted to its elements: at least 40 bits of others must agree, 22 of each
 * in f32. */
static void fitted_counts_need_elements_of_their_own(void **state) {
  assert_int_equal(rounded(0.7, 1, 0x1p-24, 8), AD_F32);
  assert_int_equal(rounded(0.7, 1, 0x1p-24, 4), AD_F32);
  assert_int_equal(rounded(0.7, 1, 0x1p-24, 3), AD_F64);
  assert_int_equal(rounded(1, 1, 0x1p-24, 3), AD_F32);
}

/* What dtype a sum of n addends is found to be rounded to, of which the second is missing and the first counts `first`
 * times; it was made in `reduce`, and its elements are off by `off` times `unit`, up and down. */
static ad_dtype rounded_of(int n, double first, ad_dtype reduce, double off, double unit, size_t elements) {
  double counts[64];
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, n, elements);
  m.param.reduce = reduce;
  fill_apart(&m);
  for (int c = 0; c < n; c++) counts[c] = c == 1 ? 0 : c ? 1 : first;
  sum_up(&m, counts);
  for (size_t i = 0; i < elements; i++) m.sum[i] *= 1 + off * unit * (i / (size_t)n % 2 ? -1 : 1);
  judge(&m, &judged);
  assert_int_equal(judged.holds, 0);
  ad_dtype found = judged.why.explains ? judged.why.rounded : AD_F64;
  finish(&m, &judged);
  return found;
}

/* The roundings of 61 additions in bf16 are less than a quarter of the addends, those of 62 are more. */
static void a_dtype_that_rounds_a_quarter_away_explains_nothing(void **state) {
  assert_int_equal(rounded_of(61, 1, AD_F64, 25, 0x1p-8, 61 * 4), AD_BF16);
  assert_int_equal(rounded_of(62, 1, AD_F64, 25, 0x1p-8, 62 * 4), AD_F64);
}

/* Three addends in bf16: 5.7 bits of each element, so that seven are too few and eight are enough. */
static void coarse_dtypes_need_more_elements(void **state) {
  assert_int_equal(rounded_of(3, 0.7, AD_F64, 1, 0x1p-8, 3 + 7), AD_F64);
  assert_int_equal(rounded_of(3, 0.7, AD_F64, 1, 0x1p-8, 3 + 8), AD_BF16);
}

/* A sum that the dump says was made in a dtype is rounded to a narrower one, and not to the same: two additions and the
 * element, of three addends of which one is missing, allow three roundings, and four if the array had that dtype too. */
static void the_dtype_of_the_sum_itself_is_no_rounding(void **state) {
  assert_int_equal(rounded_of(3, 1, AD_F32, 3.5, 0x1p-24, 300), AD_F16);
  assert_int_equal(rounded_of(3, 1, AD_F16, 3.5, 0x1p-11, 300), AD_BF16);
}

/* The first of two addends counts 1 + `off` times, the second is missing, in bf16; *tolerance: what a count may be off
 * and still be taken for 1. Returns the count that is found. */
static double found_in_bf16(double off, double *tolerance) {
  double counts[2] = {1 + off, 0};
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, 2, 800);
  m.param.reduce = AD_BF16;
  fill_apart(&m);
  sum_up(&m, counts);
  judge(&m, &judged);
  double found = judged.why.counts[0];
  assert_true(!judged.holds && judged.why.explains && judged.why.counts[1] == 0);
  *tolerance = ad_count_tolerance(judged.why.errors[0]);
  finish(&m, &judged);
  return found;
}

/* A fitted count that rounding explains becomes the number that a bug typically produces; one beyond that stays as it
 * is. */
static void fitted_counts_are_simple_within_their_errors(void **state) {
  for (int side = -1; side <= 1; side += 2) {
    double tolerance = 0, off;
    found_in_bf16(side * 1e-3, &tolerance);
    assert_true(tolerance < 0.01); /* 1 explains the sum on both sides */
    for (int beyond = 0; beyond <= 1; beyond++) {
      off = side * tolerance * (beyond ? 1.02 : 0.98);
      double found = found_in_bf16(off, &tolerance);
      assert_true(beyond ? fabs(found - 1 - off) < 1e-9 : found == 1);
    }
  }
}

/* ---- how many elements determine the counts ---- */

/* Whether counts that no hypothesis has are found from so many elements. Of three addends `zeros` are 0, and two are
 * the same if `parallel`. */
static int found_from(size_t elements, int zeros, int parallel) {
  double counts[3] = {0.3, 0.7, 1.4};
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, 3, elements);
  fill_apart(&m);
  if (zeros) memset(m.values, 0, elements * sizeof *m.values);
  if (parallel) memcpy(m.values, m.values + elements, elements * sizeof *m.values);
  sum_up(&m, counts);
  judge(&m, &judged);
  int found = judged.why.explains;
  finish(&m, &judged);
  return found;
}

static void a_fit_takes_more_elements_than_addends(void **state) {
  assert_int_equal(found_from(3, 0, 0), 0);
  assert_int_equal(found_from(4, 0, 0), 1);
  assert_int_equal(found_from(3, 1, 0), 1); /* the count of an addend that is 0 is not looked for */
  assert_int_equal(found_from(12, 0, 0), 1);
  assert_int_equal(found_from(12, 0, 1), 0); /* of two identical addends only the sum of counts is known */
}

/* Where elements are too few for a fit, counts that one bug typically produces are tried. */
static void few_elements_have_the_counts_of_a_mistake(void **state) {
  static const double tried[][3] = {{1, 0, 1}, {1, 2, 1}, {0.5, 0.5, 0.5}, {0.3, 0.7, 1.4}};
  for (int i = 0; i < 4; i++) {
    made_parts m;
    ad_judged judged;
    make_held_parts(&m, 3, 3);
    fill_apart(&m);
    sum_up(&m, tried[i]);
    judge(&m, &judged);
    assert_int_equal(judged.why.explains, i < 3);
    finish(&m, &judged);
  }
}

/* Two elements of three addends: the expected sum, off by `off` units of f32. */
static void few_elements_may_be_rounded(void **state) {
  for (int i = 0; i < 2; i++) {
    double counts[3] = {1, 1, 1};
    made_parts m;
    ad_judged judged;
    make_held_parts(&m, 3, 2);
    for (int k = 0; k < 6; k++) m.values[k] = 1 + k % 4;
    sum_up(&m, counts);
    m.sum[0] *= 1 + (i ? 5.1 : 4.9) * 0x1p-24;
    m.sum[1] *= 1 - (i ? 5.1 : 4.9) * 0x1p-24;
    judge(&m, &judged);
    assert_int_equal(judged.holds, 0);
    assert_int_equal(judged.why.explains, 1);
    assert_int_equal(judged.why.rounded, i ? AD_F16 : AD_F32);
    finish(&m, &judged);
  }
}

/* Two parts of one sum, with `first` and `second` elements of four addends that have these counts; in the second part
 * the first addend counts `more`. Bits of the result: the parts that hold, then those whose counts are explained. */
static int judged_as_two(size_t first, size_t second, const double *counts, double more) {
  made_parts m;
  ad_judged list[2];
  make_held_parts(&m, 4, first + second);
  for (size_t i = 0; i < 4 * m.elements; i++) m.values[i] = i / m.elements == i % m.elements % 4 ? 1 + (double)i : 0;
  sum_up(&m, counts);
  for (size_t i = first; i < m.elements; i++) m.sum[i] += more * m.values[i];
  ad_part parts[2] = {m.part, m.part};
  parts[0].count = first;
  parts[1].count = second;
  parts[0].box.count[0] = (int64_t)first;
  parts[1].box.first[0] = (int64_t)first;
  parts[1].box.count[0] = (int64_t)second;
  m.parts.parts = parts;
  m.parts.count = 2;
  judge(&m, list);
  int found = 0;
  for (int i = 0; i < 2; i++) found |= list[i].holds << i | list[i].why.explains << (2 + i);
  finish(&m, list);
  return found;
}

static void parts_that_are_too_small_are_fitted_together(void **state) {
  const double counts[4] = {0.3, 0.7, 1.4, 0.9}, right[4] = {1, 1, 1, 1};
  assert_int_equal(judged_as_two(2, 2, counts, 0), 0);
  assert_int_equal(judged_as_two(3, 2, counts, 0), 4 | 8);
  assert_int_equal(judged_as_two(4, 4, counts, 0), 4 | 8);
  assert_int_equal(judged_as_two(8, 4, counts, 2), 4); /* the first is explained alone, and stays so */
  assert_int_equal(judged_as_two(8, 4, right, 0), 1 | 2);
  assert_int_equal(judged_as_two(8, 9, right, 2), 1 | 8);
  assert_int_equal(judged_as_two(4, 4, right, 2), 1 | 8);
}

/* ---- how much work fits may take ---- */

/* Judges a sum of n addends, each with its own count, or `one` of which has another count than 1. */
static ad_explanation judged_after(double spent, int n, int one, size_t elements, size_t *kept) {
  double counts[80];
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, n, elements);
  fill_apart(&m);
  for (int c = 0; c < n; c++) counts[c] = one ? 1 + 2 * (c == 5) : 0.3 + 0.01 * c;
  sum_up(&m, counts);
  *kept = judge_after(&m, spent, &judged);
  ad_explanation why = judged.why;
  assert_int_equal(judged.holds, 0);
  for (int c = 0; c < n; c++) assert_true(fabs(judged.why.counts[c] - (why.explains ? counts[c] : 1)) < 1e-9);
  finish(&m, &judged);
  return why;
}

/* More than 64 addends are fitted while there is work left; after that few other counts are looked for. What is found
 * of them is kept for later parameters. */
static void many_addends_are_fitted_while_work_is_left(void **state) {
  static const struct {
    int n, one;
    double spent;
    size_t elements;
    int explains, unfitted;
    size_t kept;
  } cases[] =
      {
          {64, 0, 0, 256, 1, 0, 0},    {64, 0, 1e10, 256, 1, 0, 0}, {65, 0, 0, 260, 1, 0, 1},
          {65, 0, 1e10, 260, 0, 1, 0}, {65, 1, 1e10, 260, 1, 0, 1}, {65, 1, 0, 260, 1, 0, 1},
          {65, 1, 0, 65, 1, 0, 1}, /* too few elements for a fit */
      };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t kept;
    ad_explanation why = judged_after(cases[i].spent, cases[i].n, cases[i].one, cases[i].elements, &kept);
    assert_int_equal(why.explains, cases[i].explains);
    assert_int_equal(why.unfitted, cases[i].unfitted);
    assert_int_equal(kept, cases[i].kept);
  }
}

/* ---- what is expected, and what is left ---- */

/* Each addend is expected as often as what its loss was divided by is of the mean; a file without addends has none. */
static void expected_counts_are_divisors_over_their_mean(void **state) {
  static const char one[] =
      "\x38\0\0\0\0\0\0\0"
      "{\"w\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}  "
      "\0\0\0\0\0\0\0\0";
  static const char none[] = "\2\0\0\0\0\0\0\0{}";
  static const struct {
    double divisors[3];
    int empty; /* the file of this rank has no addends; -1: all have */
    double expected[3];
  } cases[] = {
      {{2, 4, 6}, -1, {0.5, 1, 1.5}},   {{4, 4, 4}, -1, {1, 1, 1}},   {{2, 6, 100}, 2, {0.5, 1.5, 25}},
      {{NAN, NAN, NAN}, -1, {1, 1, 1}}, {{2, NAN, 4}, -1, {1, 1, 1}},
  };
  ad_safetensors *full, *empty;
  assert_int_equal(ad_safetensors_parse(one, sizeof one - 1, "one", &full), AD_OK);
  assert_int_equal(ad_safetensors_parse(none, sizeof none - 1, "none", &empty), AD_OK);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ad_dump_file files[3];
    double found[3];
    made_parts m;
    make_parts(&m, 3, 1, 6);
    for (int c = 0; c < 3; c++) {
      files[c] = (ad_dump_file){.divisor = cases[i].divisors[c], .tensors = c == cases[i].empty ? empty : full};
      m.dump.addends[c] = &files[c];
      m.members.columns[c].divisor = cases[i].divisors[c];
    }
    ad_expected_counts(&m.parts, &m.members, found);
    for (int c = 0; c < 3; c++) assert_true(fabs(found[c] - cases[i].expected[c]) < 1e-15);
    drop_parts(&m);
  }
  ad_safetensors_close(full);
  ad_safetensors_close(empty);
}

/* What is left of a sum that nothing explains is relative to the larger one of the sum and the expected one. */
static void what_is_left_is_relative_to_the_larger_sum(void **state) {
  static const double sizes[] = {10, 0.1};
  for (int i = 0; i < 2; i++) {
    enum { ELEMENTS = 60 };
    double left = 0, is = 0, wanted = 0, along = 0, square = 0;
    made_parts m;
    ad_judged judged;
    make_held_parts(&m, 3, ELEMENTS);
    fill_apart(&m);
    for (int e = 0; e < ELEMENTS; e++) {
      double all = m.values[e % 3 * ELEMENTS + e];
      m.sum[e] = sizes[i] * (e * 7 % 11 - 5);
      left += (m.sum[e] - all) * (m.sum[e] - all);
      is += m.sum[e] * m.sum[e];
      along += m.values[e] * m.sum[e];
      square += m.values[e] * m.values[e];
      wanted += all * all;
    }
    judge(&m, &judged);
    assert_int_equal(judged.why.explains, 0);
    assert_int_equal(is > wanted, i == 0);
    assert_true(fabs(judged.why.left - sqrt(left / (i ? wanted : is))) < 1e-12);
    assert_true(fabs(judged.why.counts[0] - along / square) < 1e-12); /* counts are those that fit best */
    finish(&m, &judged);
  }
}

/* A dump without addends expects nothing of a sum. */
static void without_addends_every_sum_holds(void **state) {
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, 3, 60);
  fill_apart(&m);
  for (int e = 0; e < 60; e++) m.sum[e] = e * 7 % 11 - 5;
  m.dump.microbatches = 0;
  judge(&m, &judged);
  assert_int_equal(judged.holds, 1);
  finish(&m, &judged);
}

/* Axes over which no sum could be tried count for parts that nothing explains. */
static void untried_axes_are_those_of_unexplained_parts(void **state) {
  ad_judged list[4] = {{.holds = 1, .why = {.untried = 1}},
                       {.why = {.explains = 1, .untried = 2}},
                       {.why = {.untried = 4}},
                       {.why = {.untried = 8}}};
  assert_int_equal(ad_untried_axes(&(ad_parts){.count = 4}, list), 12);
  assert_int_equal(ad_untried_axes(&(ad_parts){.count = 2}, list), 0);
}

/* ---- sums in a dtype that hides a missing addend ---- */

/* Whether a sum that was made in bf16 counts as right if one of n addends is in it `count` times. */
static int holds_in_bf16(int n, double count, size_t elements, double spent) {
  double counts[80];
  unsigned drawn = 7;
  made_parts m;
  ad_judged judged;
  make_held_parts(&m, n, elements);
  m.param.reduce = AD_BF16;
  for (size_t i = 0; i < m.count * elements; i++) {
    drawn = drawn * 1664525 + 1013904223;
    m.values[i] = 1 + (drawn >> 16) / 65536.0;
  }
  for (int c = 0; c < n; c++) counts[c] = c == 2 ? count : 1;
  sum_up(&m, counts);
  judge_after(&m, spent, &judged);
  int holds = judged.holds;
  finish(&m, &judged);
  return holds;
}

/* The roundings of 11 additions in bf16 are more than half of one of the addends, those of 10 are less. */
static void counts_are_fitted_where_rounding_may_hide_an_addend(void **state) {
  for (int side = -1; side <= 1; side += 2) {
    assert_int_equal(holds_in_bf16(11, 1 + side * 0.02, 200, 0), 1); /* within the fit's own errors */
    assert_int_equal(holds_in_bf16(11, 1 + side * 0.08, 200, 0), 0);
    assert_int_equal(holds_in_bf16(10, 1 + side * 0.08, 200, 0), 1);
  }
}

/* A fit takes more elements than addends; eleven, each with its own elements, of which one counts 1.04 times. */
static void a_weak_fit_takes_more_elements_than_addends(void **state) {
  for (size_t elements = 11; elements <= 12; elements++) {
    double counts[11] = {1, 1, 1.04, 1, 1, 1, 1, 1, 1, 1, 1};
    made_parts m;
    ad_judged judged;
    make_held_parts(&m, 11, elements);
    m.param.reduce = AD_BF16;
    fill_apart(&m);
    sum_up(&m, counts);
    judge(&m, &judged);
    assert_int_equal(judged.holds, elements == 11);
    finish(&m, &judged);
  }
}

/* By how much the fit of the third of eleven addends, each with its own elements, may be off, and whether a sum in bf16
 * holds in which it counts 1 + `off` times. An element that is far off, if `outlier`, is no count's. */
static int holds_weakly(double off, int outlier, double *error) {
  double counts[11] = {1, 1, 1 + off, 1, 1, 1, 1, 1, 1, 1, 1};
  made_parts m;
  ad_judged judged;
  ad_products products;
  ad_fit fit;
  make_held_parts(&m, 11, 44);
  m.param.reduce = AD_BF16;
  fill_apart(&m);
  sum_up(&m, counts);
  if (outlier) m.sum[0] *= 1.1, m.sum[11] *= 0.9;
  const ad_part *part = &m.part;
  assert_int_equal(ad_products_create(&m.parts, &part, 1, &products), AD_OK);
  assert_int_equal(ad_fit_create(&products, counts, &fit), AD_OK);
  *error = fit.errors[2];
  ad_fit_destroy(&fit);
  ad_products_destroy(&products);
  judge(&m, &judged);
  int holds = judged.holds;
  finish(&m, &judged);
  return holds;
}

static void a_weak_sum_holds_within_its_fits_errors(void **state) {
  double error;
  assert_int_equal(holds_weakly(0, 0, &error), 1);
  for (int side = -1; side <= 1; side += 2) {
    assert_int_equal(holds_weakly(side * (1e-4 + 8 * error) * 0.999, 0, &error), 1);
    assert_int_equal(holds_weakly(side * (1e-4 + 8 * error) * 1.001, 0, &error), 0);
  }
  assert_int_equal(holds_weakly(0, 1, &error), 0);
}

/* Many addends are fitted while there is work left; after that each is tried alone. */
static void weak_sums_are_reported_with_less_work_too(void **state) {
  for (int spent = 0; spent <= 1; spent++) {
    double work = spent * 1e10;
    assert_int_equal(holds_in_bf16(65, 1, 800, work), 1);
    assert_int_equal(holds_in_bf16(65, 2, 800, work), 0);
  }
}

/* ---- replicas ---- */

/* Whether two replicas are apart, each of which is the sum of its own addends: the second's elements are larger by
 * `more`, at element `at`. */
static int apart(double more, size_t at, size_t elements) {
  double counts[2] = {1, 1};
  made_parts m, other;
  ad_judged list[2];
  make_parts(&m, 2, 1, elements);
  make_parts(&other, 2, 1, elements);
  for (size_t i = 0; i < 2 * elements; i++) m.values[i] = other.values[i] = i % elements == 0 ? 2 : 1;
  other.values[at] += more;
  sum_up(&m, counts);
  sum_up(&other, counts);
  ad_members both[] = {m.members, other.members};
  ad_part parts[] = {m.part, other.part};
  parts[1].members = 1;
  m.parts.members = both;
  m.parts.member_count = m.parts.count = 2;
  m.parts.parts = parts;
  judge(&m, list);
  assert_true(list[0].holds && list[1].holds && !list[0].apart);
  ad_judged_clear(&m.parts, list);
  drop_parts(&other);
  drop_parts(&m);
  return list[1].apart;
}

/* The rounding of a sum of two addends in f64 is 8 * 2^-53 of the largest element, which is 4. */
static void replicas_may_differ_by_64_roundings_of_the_largest_element(void **state) {
  enum { MANY = AD_ROWS + 3 };
  const double bound = 64 * 8 * 0x1p-53 * 4;
  for (int side = -1; side <= 1; side += 2) {
    assert_int_equal(apart(side * 0.98 * bound, 1, 5), 0);
    assert_int_equal(apart(side * 1.02 * bound, 1, 5), 1);
    assert_int_equal(apart(side * 1.02 * bound, MANY - 1, MANY), 1);
    assert_int_equal(apart(side * 0.98 * bound, MANY - 1, MANY), 0);
  }
  assert_int_equal(apart(0, 1, 5), 0);
}

enum { BOTH_HOLD, FIRST_FAILS, SECOND_FAILS, OTHER_BOX };

/* Whether the second of two replicas is apart from the first, whose elements it exceeds by far. */
static int apart_if(int which) {
  enum { ELEMENTS = 6 };
  double counts[2] = {1, 1};
  made_parts m, other;
  ad_judged list[2];
  make_parts(&m, 2, 1, ELEMENTS);
  make_parts(&other, 2, 1, ELEMENTS);
  for (int i = 0; i < 2 * ELEMENTS; i++) m.values[i] = 1, other.values[i] = 2;
  sum_up(&m, counts);
  sum_up(&other, counts);
  if (which == FIRST_FAILS) m.sum[1] += 1, m.sum[2] -= 1;
  if (which == SECOND_FAILS) other.sum[1] += 1, other.sum[2] -= 1;
  ad_members both[] = {m.members, other.members};
  ad_part parts[] = {m.part, other.part};
  for (int i = 0; i < 2; i++) parts[i].holders = (int64_t *)(uintptr_t)holders, parts[i].holder_count = 2;
  parts[1].members = 1;
  if (which == OTHER_BOX) {
    parts[0].count = parts[1].count = ELEMENTS / 2;
    parts[0].box.count[0] = parts[1].box.count[0] = parts[1].box.first[0] = ELEMENTS / 2;
  }
  m.parts.members = both;
  m.parts.member_count = m.parts.count = 2;
  m.parts.parts = parts;
  judge(&m, list);
  assert_int_equal(list[0].holds, which != FIRST_FAILS);
  assert_int_equal(list[1].holds, which != SECOND_FAILS);
  assert_int_equal(list[0].apart, 0);
  int apart_is = list[1].apart;
  ad_judged_clear(&m.parts, list);
  drop_parts(&other);
  drop_parts(&m);
  return apart_is;
}

static void only_replicas_of_the_same_elements_that_hold_are_apart(void **state) {
  assert_int_equal(apart_if(BOTH_HOLD), 1);
  assert_int_equal(apart_if(FIRST_FAILS), 0);
  assert_int_equal(apart_if(SECOND_FAILS), 0);
  assert_int_equal(apart_if(OTHER_BOX), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_are_those_of_a_mistake_or_as_fitted),
      cmocka_unit_test(a_sum_may_be_rounded_to_a_narrower_dtype),
      cmocka_unit_test(fitted_counts_need_elements_of_their_own),
      cmocka_unit_test(a_dtype_that_rounds_a_quarter_away_explains_nothing),
      cmocka_unit_test(coarse_dtypes_need_more_elements),
      cmocka_unit_test(the_dtype_of_the_sum_itself_is_no_rounding),
      cmocka_unit_test(fitted_counts_are_simple_within_their_errors),
      cmocka_unit_test(a_fit_takes_more_elements_than_addends),
      cmocka_unit_test(few_elements_have_the_counts_of_a_mistake),
      cmocka_unit_test(few_elements_may_be_rounded),
      cmocka_unit_test(parts_that_are_too_small_are_fitted_together),
      cmocka_unit_test(many_addends_are_fitted_while_work_is_left),
      cmocka_unit_test(expected_counts_are_divisors_over_their_mean),
      cmocka_unit_test(what_is_left_is_relative_to_the_larger_sum),
      cmocka_unit_test(without_addends_every_sum_holds),
      cmocka_unit_test(untried_axes_are_those_of_unexplained_parts),
      cmocka_unit_test(counts_are_fitted_where_rounding_may_hide_an_addend),
      cmocka_unit_test(a_weak_fit_takes_more_elements_than_addends),
      cmocka_unit_test(a_weak_sum_holds_within_its_fits_errors),
      cmocka_unit_test(weak_sums_are_reported_with_less_work_too),
      cmocka_unit_test(replicas_may_differ_by_64_roundings_of_the_largest_element),
      cmocka_unit_test(only_replicas_of_the_same_elements_that_hold_are_apart),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
