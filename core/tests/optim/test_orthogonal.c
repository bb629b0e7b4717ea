/* Tests Muon's function of one matrix against the polynomial of its singular values, which a Jacobi method finds here;
 * plain products against their definition. Tests orthogonal.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "addend/helpers.h"
#include "optim/orthogonal.h"
#include "says.h"

enum { SIDE = 64, NUMEL_MAX = SIDE * SIDE };

static const ad_muon_options defaults = {
    .momentum = 0.95, .nesterov = 1, .a = 3.4445, .b = -4.7750, .c = 2.0315, .steps = 5, .epsilon = 1e-7};
static const ad_optimizer_product plain = {.multiply = ad_plain_product};

/* ---- the reference ---- */

/* Turns columns p and q of u, and of v, so that those of u become orthogonal. Returns 1 if they were not. */
static int turn(double *u, double *v, int rows, int cols, int p, int q) {
  double pp = 0, qq = 0, pq = 0;
  for (int i = 0; i < rows; i++) {
    pp += u[i * cols + p] * u[i * cols + p];
    qq += u[i * cols + q] * u[i * cols + q];
    pq += u[i * cols + p] * u[i * cols + q];
  }
  if (fabs(pq) <= 1e-17 * sqrt(pp * qq) || pq == 0) return 0;
  double zeta = (qq - pp) / (2 * pq), t = (zeta < 0 ? -1 : 1) / (fabs(zeta) + sqrt(1 + zeta * zeta));
  double cosine = 1 / sqrt(1 + t * t), sine = cosine * t;
  for (int i = 0; i < rows + cols; i++) {
    double *row = i < rows ? u + i * cols : v + (i - rows) * cols, x = row[p], y = row[q];
    row[p] = cosine * x - sine * y;
    row[q] = sine * x + cosine * y;
  }
  return 1;
}

/* The polynomial of one singular value, after division by the norm. */
static double polynomial(const ad_muon_options *muon, double s) {
  for (int step = 0; step < muon->steps; step++) s = muon->a * s + muon->b * s * s * s + muon->c * s * s * s * s * s;
  return s;
}

/* matrix [rows, cols] = U S V' becomes U p(S / norm) V', by one-sided Jacobi: u V is U S. */
static void reference(const ad_muon_options *muon, double *matrix, int rows, int cols) {
  static double u[NUMEL_MAX], v[NUMEL_MAX];
  double norm = 0;
  for (int i = 0; i < rows * cols; i++) norm += matrix[i] * matrix[i];
  norm = sqrt(norm) > muon->epsilon ? sqrt(norm) : muon->epsilon;
  for (int i = 0; i < rows * cols; i++) u[i] = matrix[i] / norm;
  for (int i = 0; i < cols * cols; i++) v[i] = i / cols == i % cols;
  for (int turned = 1, sweep = 0; turned && sweep < 60; sweep++) {
    turned = 0;
    for (int p = 0; p < cols; p++)
      for (int q = p + 1; q < cols; q++) turned += turn(u, v, rows, cols, p, q);
  }
  memset(matrix, 0, (size_t)(rows * cols) * sizeof *matrix);
  for (int k = 0; k < cols; k++) {
    double s = 0;
    for (int i = 0; i < rows; i++) s += u[i * cols + k] * u[i * cols + k];
    s = sqrt(s);
    for (int i = 0; i < rows && s > 0; i++)
      for (int j = 0; j < cols; j++)
        matrix[i * cols + j] += u[i * cols + k] / s * polynomial(muon, s) * v[j * cols + k];
  }
}

/* ---- one matrix ---- */

static void fill(double *out, size_t n, const char *name) {
  for (size_t i = 0; i < n; i++) out[i] = ad_random_normal(3, ad_random_stream(name), i);
}

/* Orthogonalises `values` [rows, cols] in place, as a matrix of `dtype` with this stride and alignment in elements. */
static ad_status orthogonalise(const ad_muon_options *muon, ad_dtype dtype, int64_t rows, int64_t cols, int64_t stride,
                               int64_t offset, double factor, const ad_optimizer_product *product, double *values) {
  ad_optimizer_options options = {.kind = AD_ADAMW, .muon = *muon};
  ad_update update = {.options = &options, .derived = {factor}};
  size_t size = ad_dtype_size(dtype), bytes = ad_orthogonal_scratch(&options, dtype, rows, cols);
  char *memory = calloc((size_t)(rows * stride + offset + 1), size);
  unsigned char *scratch = aligned_alloc(64, bytes + 64);
  assert_true(memory && scratch);
  char *data = memory + (size_t)offset * size;
  memset(scratch, 0xff, bytes);
  memset(scratch + bytes, 0x5a, 64);
  for (int64_t i = 0; i < rows; i++)
    ad_cast(data + (size_t)(i * stride) * size, dtype, values + i * cols, AD_F64, (size_t)cols);
  ad_whole_matrix matrix = {data, dtype, rows, cols, stride};
  ad_status status = ad_orthogonalise(&update, &matrix, product, scratch);
  for (int64_t i = 0; i < rows; i++)
    ad_cast(values + i * cols, AD_F64, data + (size_t)(i * stride) * size, dtype, (size_t)cols);
  for (int i = 0; i < 64; i++) assert_int_equal(scratch[bytes + (size_t)i], 0x5a);
  free(memory);
  free(scratch);
  return status;
}

static double difference(const double *a, const double *b, int n) {
  double most = 0;
  for (int i = 0; i < n; i++) most = fmax(most, fabs(a[i] - b[i]));
  return most;
}

/* Compares with the reference; `bound` is of the largest difference of elements, which are at most about 1. */
static void follows_reference(const ad_muon_options *muon, ad_dtype dtype, const double *values, int rows, int cols,
                              double factor, double bound) {
  static double result[NUMEL_MAX], expected[NUMEL_MAX];
  memcpy(result, values, sizeof result);
  memcpy(expected, values, sizeof expected);
  assert_int_equal(orthogonalise(muon, dtype, rows, cols, cols, 0, factor, &plain, result), AD_OK);
  reference(muon, expected, rows, cols);
  for (int i = 0; i < rows * cols; i++) expected[i] *= factor;
  double most = difference(result, expected, rows * cols);
  if (!(most <= bound)) fail_msg("%d x %d differs by %g", rows, cols, most);
}

static const int shapes[][2] = {{1, 1}, {1, 7}, {7, 1}, {2, 3}, {5, 5}, {6, 11}, {11, 6}, {49, 50}, {64, 20}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void singular_values_follow_the_polynomial(void **state) {
  static double values[NUMEL_MAX];
  ad_muon_options cubic = defaults, others = defaults, first = defaults;
  cubic.a = 1.5;
  cubic.b = -0.5;
  cubic.c = 0;
  others.a = 2;
  others.b = -1.25;
  others.c = 0.375;
  others.steps = 3;
  first.steps = 1;
  fill(values, NUMEL_MAX, "values");
  for (int s = 0; s < SHAPES; s++) {
    const int rows = shapes[s][0], cols = shapes[s][1];
    follows_reference(&defaults, AD_F64, values, rows, cols, 1, 1e-13);
    follows_reference(&cubic, AD_F64, values, rows, cols, 0.25, 1e-13);
    follows_reference(&others, AD_F64, values, rows, cols, 3, 1e-13);
    follows_reference(&first, AD_F64, values, rows, cols, 1, 1e-13);
    follows_reference(&defaults, AD_F32, values, rows, cols, 1, 1e-4);
    follows_reference(&defaults, AD_BF16, values, rows, cols, 1, 0.1);
  }
}

static void singular_values_of_zero_stay_zero(void **state) {
  static double values[NUMEL_MAX], ab[80];
  fill(ab, 80, "vectors");
  for (int rank = 0; rank <= 2; rank++) {
    for (int i = 0; i < 9 * 13; i++)
      values[i] = rank == 0 ? 0 : ab[i / 13] * ab[20 + i % 13] + (rank == 2) * ab[40 + i / 13] * ab[60 + i % 13];
    follows_reference(&defaults, AD_F64, values, 9, 13, 1, 1e-13);
    follows_reference(&defaults, AD_F32, values, 9, 13, 1, 1e-4);
  }
}

/* A direction whose norm is below epsilon is divided by epsilon, neither by its norm nor by the sum of the two. */
static void epsilon_is_the_least_divisor(void **state) {
  static double values[NUMEL_MAX];
  ad_muon_options muon = defaults;
  fill(values, NUMEL_MAX, "values");
  muon.epsilon = 1;
  follows_reference(&muon, AD_F64, values, 6, 11, 1, 1e-13);
  muon.epsilon = 1000;
  follows_reference(&muon, AD_F64, values, 6, 11, 1, 1e-13);
}

/* The iteration may be in another dtype than the matrix. */
static void the_iteration_has_its_own_dtype(void **state) {
  static double values[NUMEL_MAX], narrow[NUMEL_MAX], wide[NUMEL_MAX];
  fill(values, NUMEL_MAX, "values");
  ad_cast(narrow, AD_F32, values, AD_F64, NUMEL_MAX);
  ad_cast(values, AD_F64, narrow, AD_F32, NUMEL_MAX);  // f32 has these exactly
  ad_muon_options muon = defaults;
  memcpy(wide, values, sizeof wide);
  muon.dtype = AD_F64;
  assert_int_equal(orthogonalise(&muon, AD_F32, 6, 11, 11, 0, 1, &plain, wide), AD_OK);
  reference(&defaults, values, 6, 11);
  assert_true(difference(wide, values, 66) < 1e-7);
  fill(narrow, NUMEL_MAX, "values");
  muon.dtype = AD_BF16;
  assert_int_equal(orthogonalise(&muon, AD_F64, 6, 11, 11, 0, 1, &plain, narrow), AD_OK);
  double most = difference(narrow, values, 66);
  assert_true(most > 1e-4 && most < 0.1);
}

static void where_a_matrix_lies_changes_no_bit(void **state) {
  static double expected[NUMEL_MAX], values[NUMEL_MAX];
  for (int64_t offset = 0; offset < 9; offset++)
    for (int64_t stride = 11; stride < 14; stride++) {
      fill(values, NUMEL_MAX, "values");
      assert_int_equal(orthogonalise(&defaults, AD_F32, 6, 11, stride, offset, 0.5, &plain, values), AD_OK);
      if (!offset && stride == 11) memcpy(expected, values, sizeof values);
      assert_memory_equal(values, expected, 66 * sizeof *values);
    }
}

static void a_direction_that_is_not_finite_is_refused(void **state) {
  double values[6] = {1, 2, NAN, 4, 5, 6};
  assert_int_equal(orthogonalise(&defaults, AD_F32, 2, 3, 3, 0, 1, &plain, values), AD_NUMBER);
  assert_says("Muon", "2", "3");
  values[2] = INFINITY;
  assert_int_equal(orthogonalise(&defaults, AD_F64, 2, 3, 3, 0, 1, &plain, values), AD_NUMBER);
  assert_true(values[0] == 1 && values[5] == 6);
}

static void coefficients_that_diverge_are_refused(void **state) {
  double values[6] = {1, 2, 3, 4, 5, 6};
  const ad_muon_options diverging = {.a = 100, .b = 1, .c = 1, .steps = 99};
  assert_int_equal(orthogonalise(&diverging, AD_F32, 2, 3, 3, 0, 1, &plain, values), AD_NUMBER);
  assert_says("Muon", "2", "3", "100", "99");
}

static void a_matrix_without_elements_has_no_result(void **state) {
  double none = 1;
  assert_int_equal(orthogonalise(&defaults, AD_F64, 0, 5, 5, 0, 1, &plain, &none), AD_OK);
  assert_int_equal(orthogonalise(&defaults, AD_F64, 5, 0, 0, 0, 1, &plain, &none), AD_OK);
  assert_true(none == 1);
}

/* ---- products ---- */

typedef struct watched {
  double operations;
  int calls, fails_at;
  ad_dtype dtype;
} watched;

static ad_status watch(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                       ad_matrix b, int adds, void *c, int64_t c_stride) {
  watched *w = context;
  w->operations += 2 * (double)m * (double)n * (double)k;
  w->dtype = dtype;
  assert_true(((uintptr_t)a.data | (uintptr_t)b.data | (uintptr_t)c) % 64 == 0);
  if (++w->calls == w->fails_at) return ad_fail(AD_MEMORY, "no memory for product %d", w->calls);
  return ad_plain_product(NULL, dtype, m, n, k, factor, a, b, adds, c, c_stride);
}

static void operations_are_those_of_the_products(void **state) {
  static double values[NUMEL_MAX];
  const ad_optimizer_options options = {.muon = defaults};
  for (int s = 0; s < SHAPES; s++) {
    watched w = {0};
    fill(values, NUMEL_MAX, "values");
    const ad_optimizer_product product = {.multiply = watch, .context = &w};
    assert_int_equal(orthogonalise(&defaults, AD_F32, shapes[s][0], shapes[s][1], shapes[s][1], 0, 1, &product, values),
                     AD_OK);
    assert_true(w.operations == ad_orthogonal_operations(&options, shapes[s][0], shapes[s][1]));
    assert_true(w.calls == 15 && w.dtype == AD_F32);
  }
}

static void an_error_of_a_product_is_returned_and_the_matrix_kept(void **state) {
  for (int n = 1; n <= 15; n++) {
    double values[6] = {1, 2, 3, 4, 5, 6};
    watched w = {.fails_at = n};
    const ad_optimizer_product product = {.multiply = watch, .context = &w};
    assert_int_equal(orthogonalise(&defaults, AD_F64, 2, 3, 3, 0, 1, &product, values), AD_MEMORY);
    assert_true(w.calls == n && values[0] == 1 && values[5] == 6);
  }
}

static void plain_products_follow_their_definition(void **state) {
  static double a[NUMEL_MAX], b[NUMEL_MAX], c[NUMEL_MAX], before[NUMEL_MAX];
  fill(a, NUMEL_MAX, "a");
  fill(b, NUMEL_MAX, "b");
  fill(before, NUMEL_MAX, "c");
  for (int which = 0; which < 8; which++) {
    const int at = which & 1, bt = which >> 1 & 1, adds = which >> 2;
    const int64_t m = 50, n = 3, k = 51, a_stride = 60, b_stride = 62, c_stride = 5;
    memcpy(c, before, sizeof c);
    assert_int_equal(ad_plain_product(NULL, AD_F64, m, n, k, -2, (ad_matrix){a, a_stride, at},
                                      (ad_matrix){b, b_stride, bt}, adds, c, c_stride),
                     AD_OK);
    for (int64_t i = 0; i < m; i++)
      for (int64_t j = 0; j < c_stride; j++) {
        double sum = 0, old = before[i * c_stride + j];
        for (int64_t l = 0; l < k; l++)
          sum += (at ? a[l * a_stride + i] : a[i * a_stride + l]) * (bt ? b[j * b_stride + l] : b[l * b_stride + j]);
        double expected = j < n ? (adds ? old : 0) - 2 * sum : old;
        assert_true(fabs(c[i * c_stride + j] - expected) < 1e-12);
      }
  }
}

/* ---- the rate ---- */

static void rates_depend_on_the_shape_as_in_pytorch(void **state) {
  ad_optimizer_options options = {.muon = defaults};
  assert_true(ad_muon_rate_factor(&options, 64, 256) == 2 && ad_muon_rate_factor(&options, 256, 64) == 1);
  options.muon.rate = AD_MUON_MATCH_RMS_ADAMW;
  assert_true(ad_muon_rate_factor(&options, 64, 16) == 0.2 * 8 && ad_muon_rate_factor(&options, 16, 64) == 0.2 * 8);
  options.muon.rate = AD_MUON_SPECTRAL_UNCLAMPED;
  assert_true(ad_muon_rate_factor(&options, 64, 256) == 2 && ad_muon_rate_factor(&options, 256, 64) == 0.5);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(singular_values_follow_the_polynomial),
      cmocka_unit_test(singular_values_of_zero_stay_zero),
      cmocka_unit_test(epsilon_is_the_least_divisor),
      cmocka_unit_test(the_iteration_has_its_own_dtype),
      cmocka_unit_test(where_a_matrix_lies_changes_no_bit),
      cmocka_unit_test(a_direction_that_is_not_finite_is_refused),
      cmocka_unit_test(coefficients_that_diverge_are_refused),
      cmocka_unit_test(a_matrix_without_elements_has_no_result),
      cmocka_unit_test(operations_are_those_of_the_products),
      cmocka_unit_test(an_error_of_a_product_is_returned_and_the_matrix_kept),
      cmocka_unit_test(plain_products_follow_their_definition),
      cmocka_unit_test(rates_depend_on_the_shape_as_in_pytorch),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
