/* The row kernels: the exponential against the C library's, equal bits from every variant. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>
#include "base/random.h"
#include "tensor/rows.h"

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
  for (int dtype = AD_F64; dtype <= AD_F32; dtype++) {
    assert_true(exp_of((ad_dtype)dtype, 0) == 1);
    assert_true(exp_of((ad_dtype)dtype, -0.0) == 1);
    assert_true(exp_of((ad_dtype)dtype, -INFINITY) == 0);
    assert_true(exp_of((ad_dtype)dtype, -1e30) == 0);
    assert_true(exp_of((ad_dtype)dtype, INFINITY) == INFINITY);
    assert_true(exp_of((ad_dtype)dtype, 1e30) == INFINITY);
    assert_true(isnan(exp_of((ad_dtype)dtype, NAN)));
  }
}

/* ---- equal bits ---- */

typedef struct rows {
  char a[8 * MOST], b[8 * MOST], c[8 * MOST], out[8 * MOST], more[8 * MOST];
  double number[4];
} rows;

static void fill(rows *r, ad_dtype dtype) {
  memset(r, 0, sizeof *r);
  for (size_t i = 0; i < MOST; i++) {
    ad_set_element(dtype, r->a, i, 3 * ad_random_normal(5, 1, i));
    ad_set_element(dtype, r->b, i, ad_random_normal(5, 2, i));
    ad_set_element(dtype, r->c, i, ad_random_normal(5, 3, i));
    ad_set_element(dtype, r->out, i, ad_random_normal(5, 4, i));
    ad_set_element(dtype, r->more, i, ad_random_normal(5, 5, i));
  }
}

typedef void (*kernel)(const row_kernels *k, rows *r, size_t n, size_t offset, int adds);

static void run_add(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->add(r->out + o, r->a + o, r->b, n);
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
static void run_put_exp(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->put_exp(r->out + o, r->a, 0.25, 1.5, n, adds);
}
static void run_softmax_backward(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->softmax_backward(r->out + o, r->more + o, 0.25, 1.5, 0.1, 0.125, n);
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
static void run_clamp(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->clamp(r->more + o, r->a, n);
  k->clamp_backward(r->out + o, r->a, r->c, 0.01, n, adds);
}
static void run_leak(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->leak(r->more + o, r->a, 0.01, n);
  k->leak_backward(r->out + o, r->a, r->c, 0.01, n, adds);
}
static void run_mix(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->mix(r->more + o, r->a, r->b, n);
  k->mix_backward(r->out + o, r->a, r->c, n, adds);
}
static void run_norm(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->norm(r->out + o, r->a, r->b, 0.9, n);
}
static void run_norm_backward(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->norm_backward(r->out + o, adds, r->more + o, r->a, r->b, r->c, 0.9, n);
}
static void run_rotate(const row_kernels *k, rows *r, size_t n, size_t o, int adds) {
  k->rotate(r->out + o, r->a, r->b, r->c, -1, n / 4, 2, adds);
}

static void same_bits(kernel run, ad_dtype dtype, size_t n, size_t offset, int adds) {
  static rows plain, other;
  ad_variant before = ad_kernels_variant();
  ad_kernels_choose(AD_PLAIN);
  fill(&plain, dtype);
  run(ad_rows(dtype), &plain, n, offset * ad_dtype_size(dtype), adds);
  for (ad_variant variant = AD_AVX2; variant <= ad_kernels_best(); variant++) {
    ad_kernels_choose(variant);
    fill(&other, dtype);
    run(ad_rows(dtype), &other, n, offset * ad_dtype_size(dtype), adds);
    assert_memory_equal(&plain, &other, sizeof plain);
  }
  ad_kernels_choose(before);
}

static void every_variant_gives_the_same_bits(void **state) {
  static const kernel kernels[] = {run_add,           run_put,
                                   run_put_divided,   run_put_product,
                                   run_fill,          run_sums,
                                   run_exp_sum,       run_put_exp,
                                   run_swiglu,        run_softmax_backward,
                                   run_rotate,        run_swiglu_backward,
                                   run_gelu,          run_norm,
                                   run_norm_backward, run_clamp,
                                   run_leak,          run_mix};
  for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++)
    for (size_t n = 0; n < MOST - 3; n += n < 70 ? 1 : 13)
      for (size_t offset = 0; offset < 3; offset++)
        for (int adds = 0; adds < 2; adds++) {
          same_bits(kernels[k], AD_F32, n, offset, adds);
          same_bits(kernels[k], AD_F64, n, offset, adds);
        }
}

static void overwriting_never_reads(void **state) {
  rows r;
  fill(&r, AD_F32);
  for (size_t i = 0; i < MOST; i++) ad_set_element(AD_F32, r.out, i, NAN);
  ad_rows(AD_F32)->put_divided(r.out, r.a, 2, MOST, 0);
  for (size_t i = 0; i < MOST; i++) assert_false(isnan(ad_element(AD_F32, r.out, i)));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(exp_is_right_to_two_units_in_the_last_place),
      cmocka_unit_test(exp_keeps_its_limits),
      cmocka_unit_test(every_variant_gives_the_same_bits),
      cmocka_unit_test(overwriting_never_reads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
