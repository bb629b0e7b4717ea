/* Tests the eigenvectors of known and of random matrices. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/kernels.h"
#include "base/memory.h"
#include "addend/helpers.h"
#include "solve/eigen.h"

enum { LARGEST = 257 };
static const size_t sizes[] = {0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 64, 129, LARGEST};
enum { SIZE_COUNT = sizeof sizes / sizeof *sizes };

static double matrix[LARGEST * LARGEST], vectors[LARGEST * LARGEST], values[LARGEST];

static double number(size_t index) { return ad_random_normal(7, ad_random_stream("eigen"), index); }

static void make_random(size_t n) {
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j <= i; j++) matrix[i * n + j] = matrix[j * n + i] = number(i * LARGEST + j);
}

static void solve(size_t n) {
  memcpy(vectors, matrix, n * n * sizeof *matrix);
  assert_int_equal(ad_eigen_solve(vectors, n, values), AD_OK);
}

static double multiply(const double *x, const double *y, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += x[i] * y[i];
  return sum;
}

static double length_of(size_t n) { return sqrt(multiply(matrix, matrix, n * n)); }

/* Solves, and checks what holds of every answer: A v = value v, the vectors v have length 1 and are orthogonal, and the
 * values are sorted. The bound is a few roundings of an element, relative to the matrix's norm. */
static void check(size_t n) {
  solve(n);
  double rounding = 16 * DBL_EPSILON, length = length_of(n);
  for (size_t k = 0; k < n; k++) {
    const double *v = vectors + k * n;
    for (size_t i = 0; i < n; i++)
      assert_true(fabs(multiply(matrix + i * n, v, n) - values[k] * v[i]) <= rounding * length);
    for (size_t i = 0; i <= k; i++)
      assert_true(fabs(multiply(vectors + i * n, v, n) - (i == k)) <= rounding * sqrt((double)n));
    assert_true(!k || values[k - 1] <= values[k]);
  }
}

static void assert_value(size_t k, double expected, size_t n) {
  assert_true(fabs(values[k] - expected) <= 16 * DBL_EPSILON * length_of(n));
}

static void random_matrices_have_orthonormal_eigenvectors(void **state) {
  for (size_t s = 0; s < SIZE_COUNT; s++) {
    make_random(sizes[s]);
    check(sizes[s]);
  }
}

static void one_number_is_its_own_eigenvalue(void **state) {
  static const double all[] = {3, -3, 0, 1e-320, -DBL_MAX};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    matrix[0] = all[i];
    solve(1);
    assert_true(values[0] == all[i] && fabs(vectors[0]) == 1);
  }
}

static void two_rows_are_known(void **state) {
  memcpy(matrix, (double[]){2, 1, 1, 2}, 4 * sizeof *matrix);
  check(2);
  assert_value(0, 1, 2);
  assert_value(1, 3, 2);
  assert_true(fabs(vectors[0] + vectors[1]) < 1e-15 && fabs(vectors[2] - vectors[3]) < 1e-15);
}

/* The matrix with 2 on the diagonal and -1 beside it has the eigenvalues 2 - 2 cos(k pi / (n + 1)). */
static void differences_have_the_eigenvalues_of_a_string(void **state) {
  for (size_t s = 1; s < SIZE_COUNT; s++) {
    size_t n = sizes[s];
    memset(matrix, 0, sizeof matrix);
    for (size_t i = 0; i < n; i++) {
      matrix[i * n + i] = 2;
      if (i) matrix[i * n + i - 1] = matrix[(i - 1) * n + i] = -1;
    }
    check(n);
    for (size_t k = 0; k < n; k++) assert_value(k, 2 - 2 * cos((double)(k + 1) * acos(-1) / (double)(n + 1)), n);
  }
}

static void nothing_has_the_eigenvalue_nothing(void **state) {
  memset(matrix, 0, sizeof matrix);
  for (size_t s = 0; s < SIZE_COUNT; s++) {
    check(sizes[s]);
    for (size_t k = 0; k < sizes[s]; k++) assert_true(values[k] == 0);
  }
}

static void a_diagonal_is_only_sorted(void **state) {
  enum { N = 64 };
  memset(matrix, 0, sizeof matrix);
  for (size_t i = 0; i < N; i++) matrix[i * N + i] = (double)(i * 37 % N) - 20;
  check(N);
  for (size_t k = 0; k < N; k++) assert_true(values[k] == (double)k - 20);
}

/* A reflection turns one direction around and keeps all others, so n - 1 eigenvalues are equal. */
static void an_eigenvalue_may_be_there_many_times(void **state) {
  for (size_t s = 1; s < SIZE_COUNT; s++) {
    size_t n = sizes[s];
    double square = 0;
    for (size_t i = 0; i < n; i++) square += number(i) * number(i);
    for (size_t i = 0; i < n; i++)
      for (size_t j = 0; j < n; j++) matrix[i * n + j] = (double)(i == j) - 2 * number(i) * number(j) / square;
    check(n);
    for (size_t k = 0; k < n; k++) assert_value(k, k ? 1 : -1, n);
  }
}

/* The Gram matrix of n vectors of length 1 in `dimensions`; every third vector equals the one before it. */
static void make_gram(size_t n, size_t dimensions) {
  static double columns[LARGEST * 16];
  for (size_t c = 0; c < n; c++) {
    double *column = columns + c * dimensions, square = 0;
    size_t of = c % 3 == 2 ? c - 1 : c;
    for (size_t i = 0; i < dimensions; i++) column[i] = number(of * dimensions + i);
    square = multiply(column, column, dimensions);
    for (size_t i = 0; i < dimensions; i++) column[i] /= sqrt(square);
  }
  for (size_t i = 0; i < n; i++)
    for (size_t j = 0; j < n; j++)
      matrix[i * n + j] = multiply(columns + i * dimensions, columns + j * dimensions, dimensions);
}

static void what_vectors_have_no_part_in_has_the_eigenvalue_nothing(void **state) {
  for (size_t dimensions = 1; dimensions <= 16; dimensions += 5) {
    for (size_t s = 0; s < SIZE_COUNT; s++) {
      size_t n = sizes[s], independent = n - n / 3, rank = independent < dimensions ? independent : dimensions;
      make_gram(n, dimensions);
      check(n);
      for (size_t k = 0; k < n - rank; k++) assert_true(fabs(values[k]) < 1e-12);
      for (size_t k = n - rank; k < n; k++) assert_true(values[k] > 1e-6);
    }
  }
}

/* Scaling by a power of two changes no rounding. */
static void the_unit_does_not_matter(void **state) {
  enum { N = 33 };
  static const int exponents[] = {-900, 900, 1015};
  static double expected_vectors[N * N], expected[N];
  make_random(N);
  check(N);
  memcpy(expected_vectors, vectors, sizeof expected_vectors);
  memcpy(expected, values, sizeof expected);
  for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
    make_random(N);
    for (size_t i = 0; i < (size_t)N * N; i++) matrix[i] = ldexp(matrix[i], exponents[e]);
    solve(N);
    assert_memory_equal(vectors, expected_vectors, sizeof expected_vectors);
    for (size_t k = 0; k < N; k++) assert_true(values[k] == ldexp(expected[k], exponents[e]));
  }
}

/* Elements from 1 down to sizes whose squares underflow, with the largest first and last. */
static void elements_may_be_of_any_size(void **state) {
  static const double steps[] = {1e-1, 1e-8, 1e-40, 1e-75, 1e-140, 1e-155, 1e-162};
  for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
    for (int last = 0; last < 2; last++) {
      enum { N = 20 };
      for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j <= i; j++) {
          double size = pow(steps[s], (double)(last ? 2 * N - 2 - i - j : i + j) / 4);
          matrix[i * N + j] = matrix[j * N + i] = size * number(i * N + j);
        }
      check(N);
    }
  }
}

/* A matrix with ones on the diagonal and neighbours coupled by very small numbers. */
static void weakly_coupled_rows_stay_at_right_angles(void **state) {
  static const double couplings[] = {1e-8, 1e-15, 1e-17, 1e-100, 1e-146, 1e-161, 1e-170, 1e-300};
  for (size_t c = 0; c < sizeof couplings / sizeof *couplings; c++) {
    enum { N = 41 };
    for (size_t i = 0; i < N; i++)
      for (size_t j = 0; j <= i; j++)
        matrix[i * N + j] = matrix[j * N + i] = i == j ? 1 : couplings[c] * number(i * N + j);
    check(N);
  }
}

/* A row of 1 and a coupled pair of rows with very small elements. */
static void small_isolated_eigenvalues_keep_their_digits(void **state) {
  for (double size = 1e-2; size > 1e-28; size /= 10) {
    memcpy(matrix, (double[]){2 * size, size, 0, size, 2 * size, 0, 0, 0, 1}, 9 * sizeof *matrix);
    check(3);
    assert_true(fabs(values[0] / size - 1) < 1e-14 && fabs(values[1] / size - 3) < 1e-14);
  }
}

static void of_what_is_no_number_nothing_is_one(void **state) {
  static const double bad[] = {NAN, INFINITY, -INFINITY};
  for (size_t b = 0; b < sizeof bad / sizeof *bad; b++) {
    for (size_t n = 1; n <= 9; n++) {
      make_random(n);
      matrix[(n - 1) * n] = matrix[n - 1] = bad[b];
      solve(n);
      for (size_t i = 0; i < n * n; i++) assert_true(isnan(vectors[i]) && isnan(values[i / n]));
    }
  }
}

static void every_variant_finds_the_same_bits(void **state) {
  enum { N = 129 };
  static double expected_vectors[N * N], expected[N];
  make_random(N);
  ad_kernels_choose(AD_PLAIN);
  solve(N);
  memcpy(expected_vectors, vectors, sizeof expected_vectors);
  memcpy(expected, values, sizeof expected);
  for (int v = AD_PLAIN + 1; v <= (int)ad_kernels_best(); v++) {
    ad_kernels_choose((ad_variant)v);
    solve(N);
    assert_memory_equal(vectors, expected_vectors, sizeof expected_vectors);
    assert_memory_equal(values, expected, sizeof expected);
  }
}

static void without_memory_the_matrix_is_unchanged(void **state) {
  enum { N = 5 };
  make_random(N);
  memcpy(vectors, matrix, N * N * sizeof *matrix);
  ad_memory_fail_at(1);
  assert_int_equal(ad_eigen_solve(vectors, N, values), AD_MEMORY);
  ad_memory_fail_at(0);
  assert_memory_equal(vectors, matrix, N * N * sizeof *matrix);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_matrices_have_orthonormal_eigenvectors),
      cmocka_unit_test(one_number_is_its_own_eigenvalue),
      cmocka_unit_test(two_rows_are_known),
      cmocka_unit_test(differences_have_the_eigenvalues_of_a_string),
      cmocka_unit_test(nothing_has_the_eigenvalue_nothing),
      cmocka_unit_test(a_diagonal_is_only_sorted),
      cmocka_unit_test(an_eigenvalue_may_be_there_many_times),
      cmocka_unit_test(what_vectors_have_no_part_in_has_the_eigenvalue_nothing),
      cmocka_unit_test(the_unit_does_not_matter),
      cmocka_unit_test(elements_may_be_of_any_size),
      cmocka_unit_test(weakly_coupled_rows_stay_at_right_angles),
      cmocka_unit_test(small_isolated_eigenvalues_keep_their_digits),
      cmocka_unit_test(of_what_is_no_number_nothing_is_one),
      cmocka_unit_test(every_variant_finds_the_same_bits),
      cmocka_unit_test(without_memory_the_matrix_is_unchanged),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
