/* Tests matrix products in plain memory, in both dtypes, transposed or not, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "addend/products.h"
#include "kernels/kernels.h"
#include "products/gemm.h"
#include "says.h"

#define must(call)                                        \
  do {                                                    \
    if (call) fail_msg("%s: %s", #call, ad_last_error()); \
  } while (0)

enum { M = 2, N = 3, K = 4, STRIDE = 5, APART = 77 };

/* a [M, K] and b [K, N], each also transposed, in rows of STRIDE elements. */
static double a[M * STRIDE], at[K * STRIDE], b[K * STRIDE], bt[N * STRIDE];

static double left(int i, int k) { return i + 2 * k; }
static double right(int k, int j) { return 3 * j - k; }

static double expected(int i, int j) {
  double sum = 0;
  for (int k = 0; k < K; k++) sum += left(i, k) * right(k, j);
  return sum;
}

static void fill(void) {
  for (int k = 0; k < K; k++) {
    for (int i = 0; i < M; i++) a[i * STRIDE + k] = at[k * STRIDE + i] = left(i, k);
    for (int j = 0; j < N; j++) b[k * STRIDE + j] = bt[j * STRIDE + k] = right(k, j);
  }
}

static ad_matrix_product product_of(int transposes_a, int transposes_b, double *out) {
  fill();
  return (ad_matrix_product){.size = sizeof(ad_matrix_product),
                             .dtype = AD_F64,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a = {transposes_a ? at : a, STRIDE, transposes_a},
                             .b = {transposes_b ? bt : b, STRIDE, transposes_b},
                             .out = out,
                             .out_stride = STRIDE};
}

static void products_are_what_is_asked_for(void **state) {
  for (int transposes = 0; transposes < 4; transposes++)
    for (int adds = 0; adds < 2; adds++) {
      double out[M * STRIDE];
      for (int i = 0; i < M * STRIDE; i++) out[i] = APART;
      ad_matrix_product p = product_of(transposes & 1, transposes >> 1, out);
      p.adds = adds;
      p.factor = adds ? -2 : 0;
      must(ad_multiply_matrices(&p));
      for (int i = 0; i < M; i++)
        for (int j = 0; j < STRIDE; j++)
          assert_true(out[i * STRIDE + j] == (j >= N ? APART : adds ? APART - 2 * expected(i, j) : expected(i, j)));
    }
}

static void products_of_f32_are_f32(void **state) {
  float x[2] = {1, 2}, y[2] = {3, 4}, out = 1;
  ad_matrix_product p = {.size = sizeof p,
                         .dtype = AD_F32,
                         .m = 1,
                         .n = 1,
                         .k = 2,
                         .a = {x, 2, 0},
                         .b = {y, 1, 0},
                         .out = &out,
                         .out_stride = 1};
  must(ad_multiply_matrices(&p));
  assert_true(out == 11);
}

static void without_terms_there_are_zeros(void **state) {
  double out[M * STRIDE] = {7};
  ad_matrix_product p = product_of(0, 0, out);
  p.k = 0;
  p.a.data = p.b.data = NULL;
  must(ad_multiply_matrices(&p));
  assert_true(out[0] == 0);
  p.n = 0;
  p.out = NULL;
  must(ad_multiply_matrices(&p));
}

#define REFUSED(change, ...)                                \
  do {                                                      \
    ad_matrix_product p = product_of(0, 0, out);            \
    change;                                                 \
    assert_int_equal(ad_multiply_matrices(&p), AD_INVALID); \
    assert_says(__VA_ARGS__);                               \
  } while (0)

static void what_is_no_product_is_refused(void **state) {
  double out[M * STRIDE] = {7};
  REFUSED(p.size = 0, "size", "ad_matrix_product", "0");
  REFUSED(p.dtype = AD_BF16, "bf16", "f64", "f32");
  REFUSED(p.m = -1, "ad_multiply_matrices", "-1", "3", "4");
  REFUSED(p.n = -1, "ad_multiply_matrices", "2", "-1", "4");
  REFUSED(p.k = -1, "ad_multiply_matrices", "2", "3", "k -1");
  REFUSED(p.a.stride = K - 1, "a", "4 elements", "3");
  REFUSED((p.a.transposed = 1, p.a.stride = M - 1), "a", "2 elements", "1");
  REFUSED(p.b.stride = N - 1, "b", "3 elements", "2");
  REFUSED((p.b.transposed = 1, p.b.stride = K - 1), "b", "4 elements", "3");
  REFUSED(p.out_stride = N - 1, "out", "3 elements", "2");
  REFUSED(p.a.data = NULL, "a", "NULL");
  REFUSED(p.b.data = NULL, "b", "NULL");
  REFUSED(p.out = NULL, "out", "NULL");
  assert_true(out[0] == 7);
  assert_int_equal(ad_multiply_matrices(NULL), AD_INVALID);
}

/* ---- products for optimizers ---- */

/* Whole numbers that bf16 has, so that each sum of few of them is exact in f32. */
static float whole(int64_t i, int64_t j) { return (float)((i * 7 + j * 3) % 5 - 2); }

static void fill_bf16(uint16_t *out, int64_t rows, int64_t cols, int transposed) {
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < cols; j++) {
      float value = whole(i, j);
      ad_cast(&out[transposed ? j * rows + i : i * cols + j], AD_BF16, &value, AD_F32, 1);
    }
}

/* One element of factor * a b, plus 1 if `adds`, rounded once. */
static float expected_bf16(int64_t i, int64_t j, int64_t k, double factor, int adds) {
  double sum = 0;
  uint16_t narrow;
  for (int64_t l = 0; l < k; l++) sum += (double)whole(i, l) * (double)whole(l, j);
  float wide = (float)(factor * sum + (adds ? 1 : 0));
  ad_cast(&narrow, AD_BF16, &wide, AD_F32, 1);
  ad_cast(&wide, AD_F32, &narrow, AD_BF16, 1);
  return wide;
}

/* Products with a bf16 result, computed in several blocks of rows: each is rounded once, after it was added. */
static void products_of_bf16_are_rounded_once(void **state) {
  enum { ROWS = 700, COLS = 600, TERMS = 9, APART_ROWS = COLS + 3 };
  static uint16_t a16[ROWS * TERMS], b16[TERMS * COLS], out[ROWS * APART_ROWS];
  const float one = 1;
  for (int kind = 0; kind < 8; kind++) {
    int a_turned = kind & 1, b_turned = kind >> 1 & 1, adds = kind >> 2;
    fill_bf16(a16, ROWS, TERMS, a_turned);
    fill_bf16(b16, TERMS, COLS, b_turned);
    for (size_t i = 0; i < sizeof out / sizeof *out; i++) ad_cast(&out[i], AD_BF16, &one, AD_F32, 1);
    must(ad_gemm_multiply(NULL, AD_BF16, ROWS, COLS, TERMS, -1.5, (ad_matrix){a16, a_turned ? ROWS : TERMS, a_turned},
                          (ad_matrix){b16, b_turned ? TERMS : COLS, b_turned}, adds, out, APART_ROWS));
    for (int64_t i = 0; i < ROWS; i++)
      for (int64_t j = 0; j < APART_ROWS; j++) {
        float found;
        ad_cast(&found, AD_F32, &out[i * APART_ROWS + j], AD_BF16, 1);
        assert_true(found == (j < COLS ? expected_bf16(i, j, TERMS, -1.5, adds) : 1));
      }
  }
}

static void products_for_optimizers_are_those_of_training(void **state) {
  for (int transposes = 0; transposes < 4; transposes++) {
    double out[M * STRIDE], same[M * STRIDE];
    ad_matrix_product p = product_of(transposes & 1, transposes >> 1, same);
    p.factor = 0.5;
    must(ad_multiply_matrices(&p));
    must(ad_gemm_multiply(NULL, AD_F64, M, N, K, 0.5, p.a, p.b, 0, out, STRIDE));
    for (int i = 0; i < M; i++) assert_memory_equal(out + i * STRIDE, same + i * STRIDE, N * sizeof *out);
  }
  must(ad_gemm_multiply(NULL, AD_BF16, 0, 3, 1, 1, (ad_matrix){NULL, 1, 0}, (ad_matrix){NULL, 3, 0}, 0, NULL, 3));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_of_bf16_are_rounded_once),
      cmocka_unit_test(products_for_optimizers_are_those_of_training),
      cmocka_unit_test(products_are_what_is_asked_for),
      cmocka_unit_test(products_of_f32_are_f32),
      cmocka_unit_test(without_terms_there_are_zeros),
      cmocka_unit_test(what_is_no_product_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
