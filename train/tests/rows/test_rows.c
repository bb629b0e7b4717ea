/* Tests the row kernels: the exponential against the C library's, equal bits from every vector variant, and bf16
 * computed in f32 and rounded when stored. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "addend/helpers.h"
#include "rows/rows.h"

enum { MOST = 200 };

static double exp_of(ad_dtype dtype, double x) {
  char in[8], out[8];
  ad_set_element(dtype, in, 0, x);
  ad_rows(dtype)->put_exp(out, in, 0, 1, 1, 0);
  return ad_element(dtype, out, 0);
}

static double units_off(ad_dtype dtype, double x) {
  double at = dtype == AD_F32 ? (double)(float)x : x;
  long double right = expl((long double)at);
  int exponent;
  frexpl(right, &exponent);
  long double unit = ldexpl(1, exponent - (dtype == AD_F32 ? 24 : 53));
  return (double)(fabsl((long double)exp_of(dtype, x) - right) / unit);
}

static void exp_is_right_to_two_units_in_the_last_place(void **state) {
  for (uint64_t i = 0; i < 200000; i++) {
    double uniform = ad_random_uniform(1, 1, i);
    assert_true(units_off(AD_F32, -86 + 174.7 * uniform) <= 2);
    assert_true(units_off(AD_F64, -707 + 1416.7 * uniform) <= 2);
    assert_true(units_off(AD_F32, 2 * uniform - 1) <= 2);
    assert_true(units_off(AD_F64, 2 * uniform - 1) <= 2);
  }
}

static void exp_keeps_its_limits(void **state) {
  for (int dtype = AD_F64; dtype <= AD_BF16; dtype++) {
    assert_true(exp_of((ad_dtype)dtype, 0) == 1);
    assert_true(exp_of((ad_dtype)dtype, -0.0) == 1);
    assert_true(exp_of((ad_dtype)dtype, -INFINITY) == 0);
    assert_true(exp_of((ad_dtype)dtype, -1e30) == 0);
    assert_true(exp_of((ad_dtype)dtype, INFINITY) == INFINITY);
    assert_true(exp_of((ad_dtype)dtype, 1e30) == INFINITY);
    assert_true(isnan(exp_of((ad_dtype)dtype, NAN)));
  }
}

/* ---- the rows, and one call of each kernel ---- */

typedef struct rows {
  char a[8 * MOST], b[8 * MOST], c[8 * MOST], out[8 * MOST], more[8 * MOST]; /* rows in the dtype */
  char weight[8 * MOST], turn[8 * MOST], wide[8 * MOST], wider[8 * MOST];    /* rows in its wide dtype */
  double number[3];
} rows;

static double rounded_to(ad_dtype dtype, double value) {
  char element[8];
  ad_set_element(dtype, element, 0, value);
  return ad_element(dtype, element, 0);
}

static double normal(uint64_t stream, size_t i) {
  static double numbers[9][MOST];
  if (numbers[stream][i] == 0) numbers[stream][i] = ad_random_normal(5, stream + 1, i);
  return numbers[stream][i];
}

/* Fills the rows with normal random numbers, rounded to `rounded` so that no row is too narrow for them. */
static void fill(rows *r, ad_dtype dtype, ad_dtype rounded) {
  char *own[] = {r->a, r->b, r->c, r->out, r->more}, *wide[] = {r->weight, r->turn, r->wide, r->wider};
  memset(r, 0, sizeof *r);
  for (size_t i = 0; i < MOST; i++) {
    for (uint64_t k = 0; k < 5; k++) ad_set_element(dtype, own[k], i, rounded_to(rounded, (k ? 1 : 3) * normal(k, i)));
    for (uint64_t k = 0; k < 4; k++)
      ad_set_element(ad_dtype_wide(dtype), wide[k], i, rounded_to(rounded, normal(k + 5, i)));
  }
}

/* A call of a kernel; offset: bytes into the rows in the dtype. */
typedef void (*kernel)(const row_kernels *k, rows *r, size_t n, size_t offset, int adds);

static void run_add(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->add(r->out + o, r->a + o, r->b, n);
}
static void run_add_wide(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->add_wide(r->wide, adds ? r->wide : r->weight, r->a + o, n);
}
static void run_put_wide(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put_wide(r->wide, r->a + o, 1.7, n, adds);
}
static void run_put_narrow(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put_narrow(r->out + o, r->wide, 1.7, n, adds);
}
static void run_put(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put(r->out + o, r->a, 1.7, n, adds);
}
static void run_put_divided(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put_divided(r->out + o, r->a, 1.7, n, adds);
}
static void run_put_product(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put_product(r->out + o, r->a, r->b, n, adds);
}
static void run_fill(const row_kernels *k, rows *r, size_t n, size_t o, int adds) { k->fill(r->out + o, 0.3, n, adds); }
static void run_sums(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  r->number[0] = k->sum(r->a + o, n);
  r->number[1] = k->dot(r->a + o, r->b, n);
  r->number[2] = k->max(r->a + o, n);
}
static void run_exp_sum(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  r->number[0] = k->exp_sum(r->out + o, r->a + o, 0.25, n);
}
static void run_exp_sum_in_place(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  r->number[0] = k->exp_sum(r->a + o, r->a + o, 0.25, n);
}
static void run_exp_sum_narrow(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  r->number[0] = k->exp_sum_narrow(r->out + o, r->wide, 0.25, n);
}
static void run_put_exp(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put_exp(r->out + o, r->a, 0.25, 1.5, n, adds);
}
static void run_softmax_backward(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->softmax_backward(r->out + o, r->more + o, r->wide, r->wider, 0.25, 1.5, 0.1, 0.125, n);
}
static void run_swiglu(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->swiglu(r->out + o, r->a, r->b, n);
}
static void run_swiglu_backward(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->swiglu_backward(r->out + o, adds, r->more + o, adds, r->a, r->b, r->c, n);
}
static void run_gelu(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->gelu(r->more + o, r->a, n);
  k->gelu_backward(r->out + o, r->a, r->c, n, adds);
}
static void run_norm(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->norm(r->out + o, r->a, r->weight, 0.9, n);
}
static void run_norm_wide(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->norm_wide(r->out + o, r->wide, r->weight, 0.9, n);
}
static void run_norm_backward(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->norm_backward(r->out + o, adds, r->wide, r->a, r->weight, r->c, 0.9, n);
}
static void run_norm_backward_wide(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->norm_backward_wide(r->wider, adds, r->wide, r->turn, r->weight, r->c + o, 0.9, n);
}
static void run_rotate(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->rotate(r->out + o, r->a, r->weight, r->turn, -1, n / 4, 2, adds);
}

static const kernel kernels[] = {run_add,
                                 run_add_wide,
                                 run_put,
                                 run_put_wide,
                                 run_put_narrow,
                                 run_put_divided,
                                 run_put_product,
                                 run_fill,
                                 run_sums,
                                 run_exp_sum,
                                 run_exp_sum_in_place,
                                 run_exp_sum_narrow,
                                 run_put_exp,
                                 run_swiglu,
                                 run_softmax_backward,
                                 run_rotate,
                                 run_swiglu_backward,
                                 run_gelu,
                                 run_norm,
                                 run_norm_wide,
                                 run_norm_backward,
                                 run_norm_backward_wide};

typedef void (*check)(kernel run, ad_dtype dtype, size_t n, size_t offset, int adds);

static void each_kernel(check holds, ad_dtype dtype) {
  for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
    for (size_t n = 0; n < MOST - 3; n += n < 70 ? 1 : 13)
      for (size_t offset = 0; offset < 3; offset++)
        for (int adds = 0; adds < 2; adds++) holds(kernels[k], dtype, n, offset, adds);
}

static const row_kernels *rows_of(ad_dtype dtype, ad_variant variant) {
  ad_variant before = ad_kernels_variant();
  ad_kernels_choose(variant);
  const row_kernels *found = ad_rows(dtype);
  ad_kernels_choose(before);
  return found;
}

/* ---- equal bits from every vector variant ---- */

static const row_kernels *variants[AD_AVX512FP16 + 1];

static void same_bits(kernel run, ad_dtype dtype, size_t n, size_t offset, int adds) {
  static rows start, plain, other;
  fill(&start, dtype, AD_F64);
  plain = start;
  run(variants[AD_PLAIN], &plain, n, offset * ad_dtype_size(dtype), adds);
  for (ad_variant variant = AD_AVX2; variant <= AD_AVX512FP16 && variants[variant]; variant++) {
    other = start;
    run(variants[variant], &other, n, offset * ad_dtype_size(dtype), adds);
    assert_memory_equal(&plain, &other, sizeof plain);
  }
}

static void every_variant_gives_the_same_bits(void **state) {
  for (int dtype = AD_F64; dtype <= AD_BF16; dtype++) {
    for (ad_variant variant = AD_PLAIN; variant <= ad_kernels_best(); variant++)
      variants[variant] = rows_of((ad_dtype)dtype, variant);
    each_kernel(same_bits, (ad_dtype)dtype);
  }
}

static void what_may_be_in_place_gives_the_same_there(void **state) {
  for (int dtype = AD_F64; dtype <= AD_F32; dtype++)
    for (size_t n = 0; n < MOST; n++) {
      rows apart, in_place;
      fill(&apart, (ad_dtype)dtype, AD_F64);
      fill(&in_place, (ad_dtype)dtype, AD_F64);
      const row_kernels *k = ad_rows((ad_dtype)dtype);
      k->softmax_backward(apart.out, apart.more, apart.a, apart.b, 0.25, 1.5, 0.1, 0.125, n);
      k->softmax_backward(in_place.a, in_place.b, in_place.a, in_place.b, 0.25, 1.5, 0.1, 0.125, n);
      assert_memory_equal(apart.out, in_place.a, n * ad_dtype_size((ad_dtype)dtype));
      assert_memory_equal(apart.more, in_place.b, n * ad_dtype_size((ad_dtype)dtype));
      k->exp_sum(apart.out, apart.c, 0.25, n);
      k->exp_sum(in_place.c, in_place.c, 0.25, n);
      assert_memory_equal(apart.out, in_place.c, n * ad_dtype_size((ad_dtype)dtype));
    }
}

/* ---- bf16 against f32 ---- */

static void run_from(rows *r, ad_dtype dtype, kernel run, size_t n, size_t offset, int adds) {
  fill(r, dtype, AD_BF16);
  run(ad_rows(dtype), r, n, offset * ad_dtype_size(dtype), adds);
}

static void holds_rounded(const char *half, const char *wide) {
  uint16_t right[MOST];
  ad_cast(right, AD_BF16, wide, AD_F32, MOST);
  assert_memory_equal(half, right, sizeof right);
}

/* Checks that a bf16 kernel gives the f32 kernel's results on the same numbers, rounded once. */
static void is_f32_rounded(kernel run, ad_dtype dtype, size_t n, size_t offset, int adds) {
  static rows half, wide;
  run_from(&half, dtype, run, n, offset, adds);
  run_from(&wide, AD_F32, run, n, offset, adds);
  holds_rounded(half.a, wide.a);
  holds_rounded(half.out, wide.out);
  holds_rounded(half.more, wide.more);
  assert_memory_equal(half.wide, wide.wide, sizeof wide.wide);
  assert_memory_equal(half.wider, wide.wider, sizeof wide.wider);
  assert_memory_equal(half.number, wide.number, sizeof wide.number);
}

static void bf16_is_f32_rounded_where_it_is_stored(void **state) { each_kernel(is_f32_rounded, AD_BF16); }

static void is_near(double value, double right, double unit) {
  if (value == right) return;
  assert_true(fabs(value - right) <= unit * fabs(right) + 2e-5);  // the error that f32 terms leave in a sum
}

static void is_near_f64(kernel run, ad_dtype dtype, size_t n, size_t offset, int adds) {
  static rows half, right;
  run_from(&half, dtype, run, n, offset, adds);
  run_from(&right, AD_F64, run, n, offset, adds);
  for (size_t i = 0; i < MOST; i++) {
    is_near(ad_element(dtype, half.a, i), ad_element(AD_F64, right.a, i), 0x1p-8);
    is_near(ad_element(dtype, half.out, i), ad_element(AD_F64, right.out, i), 0x1p-8);
    is_near(ad_element(dtype, half.more, i), ad_element(AD_F64, right.more, i), 0x1p-8);
    is_near(ad_element(AD_F32, half.wide, i), ad_element(AD_F64, right.wide, i), 0x1p-20);
    is_near(ad_element(AD_F32, half.wider, i), ad_element(AD_F64, right.wider, i), 0x1p-20);
  }
  for (int i = 0; i < 3; i++) is_near(half.number[i], right.number[i], 0x1p-20);
}

static void bf16_is_near_f64_on_the_same_numbers(void **state) { each_kernel(is_near_f64, AD_BF16); }

/* Tries all upper halves of an f32, each with these lower halves: exact values, midpoints, and what is next to them. */
static void bf16_is_rounded_to_nearest_even(void **state) {
  static const uint32_t below[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
  static float values[0x10000];
  static uint16_t halves[0x10000], right[0x10000];
  for (ad_variant variant = AD_PLAIN; variant <= ad_kernels_best(); variant++) {
    for (size_t k = 0; k < sizeof below / sizeof *below; k++) {
      for (uint32_t i = 0; i < 0x10000; i++) {
        uint32_t bits = i << 16 | below[k];
        memcpy(&values[i], &bits, sizeof bits);
      }
      ad_cast(right, AD_BF16, values, AD_F32, 0x10000);
      rows_of(AD_BF16, variant)->put_narrow(halves, values, 1, 0x10000, 0);
      for (size_t i = 0; i < 0x10000; i++) assert_int_equal(halves[i], isnan(values[i]) ? 0x7fc0 : right[i]);
    }
  }
}

static void bf16_is_read_exactly(void **state) {
  static uint16_t halves[0x10000];
  static float values[0x10000];
  for (uint32_t i = 0; i < 0x10000; i++) halves[i] = (uint16_t)i;
  for (ad_variant variant = AD_PLAIN; variant <= ad_kernels_best(); variant++) {
    rows_of(AD_BF16, variant)->put_wide(values, halves, 1, 0x10000, 0);
    for (size_t i = 0; i < 0x10000; i++) {
      float right;
      ad_cast(&right, AD_F32, &halves[i], AD_BF16, 1);
      assert_true(isnan(right) ? isnan(values[i]) : !memcmp(&values[i], &right, sizeof right));
      assert_true(isnan(right) || ad_element(AD_BF16, halves, i) == (double)right);
    }
  }
}

static void overwriting_never_reads(void **state) {
  for (int dtype = AD_F64; dtype <= AD_BF16; dtype++) {
    rows r;
    fill(&r, (ad_dtype)dtype, (ad_dtype)dtype);
    for (size_t i = 0; i < MOST; i++) ad_set_element((ad_dtype)dtype, r.out, i, NAN);
    ad_rows((ad_dtype)dtype)->put_divided(r.out, r.a, 2, MOST, 0);
    for (size_t i = 0; i < MOST; i++) assert_false(isnan(ad_element((ad_dtype)dtype, r.out, i)));
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exp_is_right_to_two_units_in_the_last_place),
      cmocka_unit_test(exp_keeps_its_limits),
      cmocka_unit_test(every_variant_gives_the_same_bits),
      cmocka_unit_test(what_may_be_in_place_gives_the_same_there),
      cmocka_unit_test(bf16_is_f32_rounded_where_it_is_stored),
      cmocka_unit_test(bf16_is_near_f64_on_the_same_numbers),
      cmocka_unit_test(bf16_is_rounded_to_nearest_even),
      cmocka_unit_test(bf16_is_read_exactly),
      cmocka_unit_test(overwriting_never_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
