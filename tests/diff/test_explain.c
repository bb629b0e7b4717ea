/* Tests what is decided of the parts of a sum: whether each is the expected combination, which counts explain it
 * otherwise, and whether copies differ by more than rounding; each number that is compared, from both sides. */
#include <string.h>
#include "diff/known.h"
#include "files/safetensors.h"
#include "made_parts.h"

/* Judges all parts. Addends beside those of the members are in no file. */
static void judge(made_parts *m, ad_judged *list) {
  static const char nothing[] = "\2\0\0\0\0\0\0\0{}";
  ad_known known;
  ad_safetensors *file;
  assert_int_equal(ad_safetensors_parse(nothing, sizeof nothing - 1, "nothing", &file), AD_OK);
  m->file.tensors = file;
  m->dump.params = &m->param;
  m->dump.param_count = 1;
  assert_int_equal(ad_known_create(&m->dump, &known), AD_OK);
  known.alone = 1;
  assert_int_equal(ad_judge_parts(&m->parts, &known, list), AD_OK);
  ad_known_destroy(&known);
  ad_safetensors_close(file);
}

/* ---- counts ---- */

/* Counts near one that a mistake makes are that one, where the fit allows it; all others stay as they were fitted. */
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
    judge(&m, &judged);
    assert_int_equal(judged.holds, tried[i] == 1);
    if (!judged.holds) {
      assert_int_equal(judged.why.explains, 1);
      assert_int_equal(judged.why.rounded, 0);
      for (int c = 0; c < RANKS; c++) assert_true(fabs(judged.why.counts[c] - counts[c]) < 1e-12);
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
  int64_t holders[2] = {0, 1};
  make_parts(&m, 2, 1, (size_t)elements);
  m.part.holders = holders;
  m.part.holder_count = 2;
  fill_apart(&m);
  sum_up(&m, counts);
  for (int i = 0; i < elements; i++) m.sum[i] *= 1 + off * unit * (i / 2 % 2 ? -1 : 1);
  judge(&m, &judged);
  assert_int_equal(judged.holds, 0);
  assert_true(judged.why.errors[0] > 0);
  ad_dtype found = judged.why.explains ? judged.why.rounded : AD_F64;
  ad_judged_clear(&m.parts, &judged);
  drop_parts(&m);
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

/* A count that no mistake makes is fitted to its elements: at least 40 bits of others must agree, 22 of each in f32. */
static void fitted_counts_need_elements_of_their_own(void **state) {
  assert_int_equal(rounded(0.7, 1, 0x1p-24, 8), AD_F32);
  assert_int_equal(rounded(0.7, 1, 0x1p-24, 4), AD_F32);
  assert_int_equal(rounded(0.7, 1, 0x1p-24, 3), AD_F64);
  assert_int_equal(rounded(1, 1, 0x1p-24, 3), AD_F32);
}

/* ---- sums in a dtype that hides a missing addend ---- */

/* Whether a sum that was made in bf16 counts as right if one of n addends is in it `count` times. */
static int holds_in_bf16(int n, double count, size_t elements) {
  double counts[16];
  unsigned drawn = 7;
  made_parts m;
  ad_judged judged;
  int64_t holders[] = {0, 1};
  make_parts(&m, n, 1, elements);
  m.part.holders = holders;
  m.part.holder_count = 2;
  m.param.reduce = AD_BF16;
  for (size_t i = 0; i < m.count * elements; i++) {
    drawn = drawn * 1664525 + 1013904223;
    m.values[i] = 1 + (drawn >> 16) / 65536.0;
  }
  for (int c = 0; c < n; c++) counts[c] = c == 2 ? count : 1;
  sum_up(&m, counts);
  judge(&m, &judged);
  int holds = judged.holds;
  ad_judged_clear(&m.parts, &judged);
  drop_parts(&m);
  return holds;
}

/* The roundings of 11 additions in bf16 are more than half of one of the addends, those of 10 are less. */
static void counts_are_fitted_where_rounding_may_hide_an_addend(void **state) {
  for (int side = -1; side <= 1; side += 2) {
    assert_int_equal(holds_in_bf16(11, 1 + side * 0.02, 200), 1); /* within the fit's own errors */
    assert_int_equal(holds_in_bf16(11, 1 + side * 0.08, 200), 0);
    assert_int_equal(holds_in_bf16(10, 1 + side * 0.08, 200), 1);
    assert_int_equal(holds_in_bf16(11, 1 + side * 0.08, 11), 1); /* too few elements for a fit */
  }
}

/* ---- copies ---- */

/* Whether two copies are apart, each of which is the sum of its own addends: the second's elements are larger by
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
static void copies_may_differ_by_64_roundings_of_the_largest_element(void **state) {
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(counts_are_those_of_a_mistake_or_as_fitted),
      cmocka_unit_test(a_sum_may_be_rounded_to_a_narrower_dtype),
      cmocka_unit_test(fitted_counts_need_elements_of_their_own),
      cmocka_unit_test(counts_are_fitted_where_rounding_may_hide_an_addend),
      cmocka_unit_test(copies_may_differ_by_64_roundings_of_the_largest_element),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
