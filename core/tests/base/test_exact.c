/* Tests exact sums against sums of rational numbers, and that neither the order of additions nor how they are divided
 * changes a bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <float.h>
#include <math.h>
#include <string.h>
#include "addend/helpers.h"
#include "base/exact.h"

enum { ADDENDS = 10 };
#define LEAST 0x1p-1074 /* the smallest positive double */
#define MOST DBL_MAX

/* Ties, sums beyond the largest double, subnormals, addends that cancel, and drawn ones. Each sum was computed by Python
 * as float(sum(map(fractions.Fraction, addends))). */
static const struct {
  int count;
  double addends[ADDENDS], sum;
} cases[] = {
    {0, {0}, 0},
    {1, {0}, 0},
    {1, {-0.0}, 0},
    {2, {-0.0, -0.0}, 0},
    {2, {0x1p0, 0x1p-53}, 0x1p0},
    {3, {0x1p0, 0x1p-53, LEAST}, 0x1.0000000000001p0},
    {2, {0x1.0000000000001p0, 0x1p-53}, 0x1.0000000000002p0},
    {3, {0x1.0000000000001p0, 0x1p-53, -LEAST}, 0x1.0000000000001p0},
    {3, {-0x1p0, -0x1p-53, -LEAST}, -0x1.0000000000001p0},
    {2, {0x1p0, -0x1p-54}, 0x1p0},
    {3, {0x1p0, -0x1p-54, LEAST}, 0x1p0},
    {3, {0x1p0, -0x1p-54, -LEAST}, 0x1.fffffffffffffp-1},
    {2, {LEAST, -LEAST}, 0},
    {3, {LEAST, LEAST, LEAST}, 0x0.0000000000003p-1022},
    {2, {0x1p-1022, -LEAST}, 0x0.fffffffffffffp-1022},
    {2, {0x1p-1022, LEAST}, 0x1.0000000000001p-1022},
    {2, {-0x1p-1022, LEAST}, -0x0.fffffffffffffp-1022},
    {2, {0x1p-1021, LEAST}, 0x1p-1021},
    {3, {0x1p-1021, 0x1p-1022, LEAST}, 0x1.8p-1021},
    {4, {0x1p-1020, LEAST, LEAST, LEAST}, 0x1.0000000000001p-1020},
    {3, {0x1p-1020, LEAST, LEAST}, 0x1p-1020},
    {2, {MOST, 0x1p970}, INFINITY},
    {3, {MOST, 0x1p970, -LEAST}, MOST},
    {2, {MOST, 0x1p969}, MOST},
    {2, {-MOST, -0x1p970}, -INFINITY},
    {3, {-MOST, -0x1p970, LEAST}, -MOST},
    {3, {MOST, MOST, -MOST}, MOST},
    {6, {MOST, MOST, MOST, -MOST, -MOST, -MOST}, 0},
    {7, {MOST, MOST, MOST, -MOST, -MOST, -MOST, LEAST}, LEAST},
    {3, {MOST, 0x1p0, -MOST}, 0x1p0},
    {5, {0x1.7e43c8800759cp996, 0x1p0, -0x1.7e43c8800759cp996, -0x1p0, LEAST}, LEAST},
    {2, {0x1p64, -0x1p0}, 0x1p64},
    {4, {0x1p32, -0x1p0, 0x1p-32, -0x0.00004p-1022}, 0x1.fffffffep31},
    {3, {-0x1.8087374dc58bp1, 0x1.74636bbdcf311p-2, -0x1.2b56be94c259p0}, -0x1.e7a629206cd16p1},
    {6,
     {-0x1.e181042d0c445p-33, -0x1.5c3880c006648p-11, 0x1.3a93932bda1e5p-24, -0x1.81ee259e850fdp0,
      0x1.f0f7ffb627be1p-33, 0x1.2739747406491p-29},
     -0x1.8219ab6ac7f65p0},
    {8,
     {0x1.707e36318e02ep-15, -0x1.0d425c247bcbbp-2, 0x1.e98693b2c67dp-8, -0x1.24de4e4b7b2b2p-25, -0x1.ac1d1c0ab55a8p-24,
      -0x1.7a6adc5df1ab1p-5, 0x1.3c22041c8b1fap-27, 0x1.242ad6abfd45bp-19},
     -0x1.34dd8fb6720f6p-2},
    {9,
     {-0x1.89012fb2b99c9p-993, 0x1.30e59a84d4525p-984, -0x1.7ae8585ea3067p-992, -0x1.3359f7c346747p-976,
      0x1.bd7f318b8c938p-973, 0x1.63cd210e69961p-990, -0x1.205084bea72eep-973, 0x1.d109b3a997026p-985,
      -0x1.4fa42ed5c5a46p-999},
     0x1.dc1c132244fa3p-975},
    {7,
     {-0x1.e86fec481c77fp-1015, 0x1.3a9c96d133481p-1020, -0x1.5504b8fbac8efp-1020, -0x1.f336d47a5ae78p-1015,
      0x1.692d7bf261d38p-1021, -0x1.e61023edd84acp-1021, 0x1.42a2c5c083ea1p-1019},
     -0x1.e521b00bd8627p-1014},
    {6,
     {0x1.9dbda91df038cp1015, 0x1.f851b98851268p1005, -0x1.8dc7bd02b5aa2p1023, 0x1.0fe9e16c7f581p1020,
      0x1.c68ef6e7e858cp1000, 0x1.882e9f36e1818p1014},
     -0x1.69682a3ae00e4p1023},
    {8,
     {0x1.a95032567b8acp394, 0x1.d9558a8d4836p-554, 0x1.3f6120da7a92dp-463, 0x1.c1b0f8e4db17bp-949,
      0x1.5639c059044a8p-462, -0x1.6141bdcaa5a23p429, -0x1.d60ada62ef3bbp-927, -0x1.64271856aec7dp130},
     -0x1.6141bdca70783p429},
    {6,
     {-0x1.f8515aa67d17dp2, -0x1.841445d25c81bp-4, 0x1.69392c7320c8ep5, -0x1.c7379ea2b34aap4, -0x1.8bd1068d353c7p1,
      -0x1.a1e548139944fp3},
     -0x1.db29d61d5a957p2},
    {10,
     {-0x1.40e0e67efd312p-23, -0x1.c158c22c6b949p9, 0x1.3568b4e80d4dcp0, -0x1.7b0cd9da33f2p-31, 0x1.0a94ecf7bf726p4,
      0x1.2018b4b504c9fp-34, 0x1.4d924a2b575adp-2, 0x1.b0900d118101dp35, -0x1.f273e73a502bcp-6, -0x1.3e190949f28ffp16},
     0x1.b08fe4e04ef25p35},
    {8,
     {0x1.8b8972d3b38ddp966, 0x1.b13818304b5e1p1018, 0x1.21e71389fbcc6p971, 0x1.13e4e52d7ea0cp981,
      -0x1.15b479581c87p1015, 0x1.ef3e1671d5a1ep985, -0x1.1810ca388a4b7p1014, -0x1.87dc31b6d5aabp1014},
     0x1.6482b947520e6p1018},
    {9,
     {0x1.5d666057bb14cp-6, 0x1.978c7657d2a26p-44, -0x1.1fa07a81dcc23p-51, 0x1.d3b85dc1cec19p36, -0x1.d3b85dc1cec19p36,
      0x1.1fa07a81dcc23p-51, -0x1.978c7657d2a26p-44, -0x1.5d666057bb14cp-6, 0x1.471879f62d54cp-378},
     0x1.471879f62d54cp-378},
    {9,
     {0x1.9ca6ccd5127d9p57, 0x1.2ca09cc10a80dp58, -0x1.216d2f405915bp23, -0x1.fcefe11075ca8p-18, 0x1.fcefe11075ca8p-18,
      0x1.216d2f405915bp23, -0x1.2ca09cc10a80dp58, -0x1.9ca6ccd5127d9p57, 0x1.830b0468c53c7p-319},
     0x1.830b0468c53c7p-319},
    {9,
     {-0x1.235cc0505941p-28, 0x1.2776c95cb6234p-10, 0x1.f155171902ef8p59, 0x1.ae3af9d18eae3p58, -0x1.ae3af9d18eae3p58,
      -0x1.f155171902ef8p59, -0x1.2776c95cb6234p-10, 0x1.235cc0505941p-28, 0x1.ff1d16475a3cbp-316},
     0x1.ff1d16475a3cbp-316},
    {6,
     {-0x0.000000099ff21p-1022, -0x0.000000000002p-1022, -0x0.0000000001f4ap-1022, 0x0.03107ae90937cp-1022,
      0x0.0000000000099p-1022, 0x0.00000005a21e7p-1022},
     0x0.03107ae509771p-1022},
    {6,
     {-0x0.00000e1b50889p-1022, -0x0.00000153e8742p-1022, 0x0.0000000000005p-1022, 0x0.00000034bda92p-1022,
      0x0.000000000e2e5p-1022, -0.0},
     -0x0.00000f3a6d24fp-1022},
};
enum { CASES = sizeof cases / sizeof *cases };

static const ad_exact empty;

static void assert_same_bits(double a, double b) { assert_memory_equal(&a, &b, sizeof a); }

static ad_exact sum_of(const double *addends, int count) {
  ad_exact sum = empty;
  for (int i = 0; i < count; i++) ad_exact_add(&sum, addends[i]);
  return sum;
}

static void a_sum_is_rounded_once(void **state) {
  for (int i = 0; i < CASES; i++) {
    ad_exact sum = sum_of(cases[i].addends, cases[i].count);
    assert_same_bits(ad_exact_value(&sum), cases[i].sum);
    ad_exact_carry(&sum);
    assert_same_bits(ad_exact_value(&sum), cases[i].sum);
  }
}

static void a_negated_sum_is_rounded_alike(void **state) {
  for (int i = 0; i < CASES; i++) {
    ad_exact sum = empty;
    for (int k = 0; k < cases[i].count; k++) ad_exact_add(&sum, -cases[i].addends[k]);
    assert_same_bits(ad_exact_value(&sum), cases[i].sum == 0 ? 0 : -cases[i].sum);
  }
}

static void neither_order_nor_parts_change_a_bit(void **state) {
  for (int i = 0; i < CASES; i++)
    for (int count = cases[i].count, first = 0; first < count; first++) {
      // The addends from `first` on, backwards, and the others, in two sums of their own.
      ad_exact parts[2] = {empty, empty};
      for (int k = count; k-- > 0;) ad_exact_add(&parts[k < first], cases[i].addends[k]);
      for (int p = 0; p < 2; p++) ad_exact_carry(&parts[p]);
      ad_exact_add_sum(&parts[0], &parts[1]);
      assert_same_bits(ad_exact_value(&parts[0]), cases[i].sum);
    }
}

static void a_carried_sum_has_small_numbers(void **state) {
  for (int i = 0; i < CASES; i++) {
    ad_exact sum = sum_of(cases[i].addends, cases[i].count);
    ad_exact_carry(&sum);
    for (int k = 0; k < AD_EXACT_LIMBS - 1; k++) assert_true(sum.limb[k] >= 0 && sum.limb[k] < INT64_C(1) << 32);
    assert_true(sum.limb[AD_EXACT_LIMBS - 1] == 0 || sum.limb[AD_EXACT_LIMBS - 1] == -1);
    assert_int_equal(sum.uncarried, 0);
  }
}

static void the_most_sums_add_up(void **state) {
  static const double values[] = {MOST, -MOST, LEAST, -LEAST, 0x1.fffffffffffffp-300};
  for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
    ad_exact sum = sum_of(&values[i], 1);
    ad_exact_carry(&sum);
    for (int k = 0; k < 30; k++) ad_exact_add_sum(&sum, &sum);
    assert_same_bits(ad_exact_value(&sum), ldexp(values[i], 30));
    ad_exact_carry(&sum);
    for (int k = 0; k < 3; k++) ad_exact_add(&sum, -values[i]);
    assert_same_bits(ad_exact_value(&sum), ((1 << 30) - 3) * values[i]);
  }
}

static void limbs_are_carried_before_they_overflow(void **state) {
  ad_exact sum = sum_of((double[]){0x1.fffffffffffffp0}, 1);
  for (int k = 0; k < 29; k++) ad_exact_add_sum(&sum, &sum);  // as after 2^29 additions
  assert_int_equal(sum.uncarried, AD_EXACT_UNCARRIED_MAX);
  ad_exact_add(&sum, 1);
  assert_int_equal(sum.uncarried, 0);
  assert_same_bits(ad_exact_value(&sum), 0x1.fffffffffffffp29 + 1);
  ad_exact_add(&sum, 1);
  assert_int_equal(sum.uncarried, 1);
}

static void infinities_and_nan_are_as_in_ieee_754(void **state) {
  static const double values[] = {INFINITY, -INFINITY, NAN, 1, -1};
  enum { VALUES = sizeof values / sizeof *values };
  for (int a = 0; a < VALUES; a++)
    for (int b = 0; b < VALUES; b++)
      for (int c = 0; c < VALUES; c++) {
        ad_exact sum = sum_of((double[]){values[a], values[b]}, 2), last = sum_of(&values[c], 1);
        ad_exact_add_sum(&sum, &last);
        double expected = values[a] + values[b] + values[c];
        if (isnan(expected)) {
          assert_true(isnan(ad_exact_value(&sum)));
        } else if (isinf(values[a]) || isinf(values[b]) || isinf(values[c])) {
          assert_same_bits(ad_exact_value(&sum), expected);
        }
      }
}

/* Draws a value of any magnitude. */
static double draw_value(uint64_t number) {
  double mantissa = ad_random_uniform(53, number, 0) - 0.5;
  return ldexp(mantissa, (int)(2000 * ad_random_uniform(53, number, 1)) - 1000);
}

static void what_is_subtracted_again_leaves_nothing(void **state) {
  enum { DRAWN = 1000 };
  double values[DRAWN];
  ad_exact sum = empty;
  for (uint64_t i = 0; i < DRAWN; i++) {
    values[i] = draw_value(i);
    ad_exact_add(&sum, values[i]);
  }
  for (int i = 1; i < DRAWN; i++) ad_exact_add(&sum, -values[i]);
  assert_same_bits(ad_exact_value(&sum), values[0]);
  ad_exact_add(&sum, -values[0]);
  ad_exact_carry(&sum);
  assert_memory_equal(&sum, &empty, sizeof sum);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_sum_is_rounded_once),
      cmocka_unit_test(a_negated_sum_is_rounded_alike),
      cmocka_unit_test(neither_order_nor_parts_change_a_bit),
      cmocka_unit_test(a_carried_sum_has_small_numbers),
      cmocka_unit_test(the_most_sums_add_up),
      cmocka_unit_test(limbs_are_carried_before_they_overflow),
      cmocka_unit_test(infinities_and_nan_are_as_in_ieee_754),
      cmocka_unit_test(what_is_subtracted_again_leaves_nothing),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
