/* Tests matrix products in plain memory, in both dtypes, transposed or not, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "addend/products.h"
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

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_are_what_is_asked_for),
      cmocka_unit_test(products_of_f32_are_f32),
      cmocka_unit_test(without_terms_there_are_zeros),
      cmocka_unit_test(what_is_no_product_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
