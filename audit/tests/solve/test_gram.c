/* Tests the inner loops of the fit in every vector variant that this machine runs, against sums in long double. */
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
#include "addend/helpers.h"
#include "solve/fit_kernel.h"

enum { COLUMNS = 131, ROWS = 1041, STRIDE = ROWS + 6, LONGEST = 67 };
static const size_t counts[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 63, 64, 65, 127, COLUMNS};
static const size_t lengths[] = {0, 1, 7, 8, 9, 16, 511, 512, 513, 1024, ROWS};

/* The kernels of a vector variant; afterwards the widest variant is in use again. */
static const fit_kernels *kernels_of(int variant) {
  ad_kernels_choose((ad_variant)variant);
  const fit_kernels *kernels = ad_fit_kernels();
  ad_kernels_choose(ad_kernels_best());
  return kernels;
}

static double number(const char *name, size_t index) { return ad_random_normal(5, ad_random_stream(name), index); }

/* Columns of `rows` elements; the gaps between them are NaN, so that a read of a gap is noticed. */
static double *new_columns(size_t n, size_t rows) {
  double *columns = malloc(n * STRIDE * sizeof *columns);
  assert_non_null(columns);
  for (size_t c = 0; c < n; c++)
    for (size_t i = 0; i < STRIDE; i++) columns[i + c * STRIDE] = i < rows ? number("columns", i + c * ROWS) : NAN;
  return columns;
}

static double *new_numbers(size_t n, const char *name) {
  double *numbers = malloc((n + 1) * sizeof *numbers);
  assert_non_null(numbers);
  for (size_t i = 0; i < n; i++) numbers[i] = number(name, i);
  return numbers;
}

static void assert_sum_near(double found, double before, const double *x, const double *y, size_t n) {
  long double sum = before, most = fabs(before);
  for (size_t i = 0; i < n; i++) {
    sum += (long double)x[i] * y[i];
    most += fabsl((long double)x[i] * y[i]);
  }
  assert_true(fabsl(found - sum) <= 16 * (long double)DBL_EPSILON * most);
}

static void check_products(const fit_kernels *kernels, size_t n, size_t rows) {
  double *columns = new_columns(n, rows), *out = new_numbers(n * n, "before"), *before = new_numbers(n * n, "before");
  kernels->gram(columns, STRIDE, n, rows, out);
  for (size_t j = 0; j < n; j++) {
    for (size_t i = 0; i <= j; i++)
      assert_sum_near(out[i + j * n], before[i + j * n], columns + i * STRIDE, columns + j * STRIDE, rows);
    for (size_t i = j + 1; i < n; i++) assert_true(out[i + j * n] == before[i + j * n]);
  }
  free(columns);
  free(out);
  free(before);
}

static void products_of_all_columns_are_added_to_the_upper_triangle(void **state) {
  const fit_kernels *kernels = ad_fit_kernels();
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (size_t r = 0; r < sizeof lengths / sizeof *lengths; r++)
      if (counts[c] <= 12 || lengths[r] % 512 <= 9) check_products(kernels, counts[c], lengths[r]);
}

static void check_product_bits(size_t n, size_t rows) {
  double *columns = new_columns(n, rows), *plain = new_numbers(n * n, "before");
  kernels_of(AD_PLAIN)->gram(columns, STRIDE, n, rows, plain);
  for (int v = AD_PLAIN + 1; v <= (int)ad_kernels_best(); v++) {
    double *wide = new_numbers(n * n, "before");
    kernels_of(v)->gram(columns, STRIDE, n, rows, wide);
    assert_memory_equal(plain, wide, n * n * sizeof *plain);
    free(wide);
  }
  free(columns);
  free(plain);
}

static void every_variant_gives_products_of_the_same_bits(void **state) {
  for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
    for (size_t r = 0; r < sizeof lengths / sizeof *lengths; r++) check_product_bits(counts[c], lengths[r]);
}

/* A product has the same bits, so the same order of additions, whatever columns are beside it. */
static void a_product_does_not_know_how_many_columns_there_are(void **state) {
  double *columns = new_columns(COLUMNS, ROWS), *all = calloc(COLUMNS * COLUMNS, sizeof *all);
  assert_non_null(all);
  ad_fit_kernels()->gram(columns, STRIDE, COLUMNS, ROWS, all);
  for (size_t first = 0; first + 2 <= COLUMNS; first += 3) {
    double two[4] = {0};
    ad_fit_kernels()->gram(columns + first * STRIDE, STRIDE, 2, ROWS, two);
    assert_true(two[0] == all[first * (COLUMNS + 1)] && two[3] == all[(first + 1) * (COLUMNS + 1)]);
    assert_true(two[2] == all[first + (first + 1) * COLUMNS]);
  }
  free(columns);
  free(all);
}

static void a_value_that_is_no_number_stays_in_its_columns_products(void **state) {
  enum { N = 9, BAD = 4 };
  double *columns = new_columns(N, ROWS), out[N * N] = {0};
  columns[ROWS - 1 + BAD * STRIDE] = NAN;
  ad_fit_kernels()->gram(columns, STRIDE, N, ROWS, out);
  for (size_t j = 0; j < N; j++)
    for (size_t i = 0; i <= j; i++) assert_int_equal(isnan(out[i + j * N]) != 0, i == BAD || j == BAD);
  free(columns);
}

/* ---- kernels' loops over rows: every vector variant against plain code ---- */

typedef struct rows {
  double x[LONGEST + 1], y[LONGEST + 1], u[LONGEST + 1], v[LONGEST + 1], w[LONGEST + 1];
} rows;

static rows random_rows(void) {
  rows r;
  for (size_t i = 0; i <= LONGEST; i++) {
    r.x[i] = number("x", i), r.y[i] = number("y", i), r.u[i] = number("u", i);
    r.v[i] = number("v", i), r.w[i] = number("w", i);
  }
  return r;
}

static void a_row_loses_what_it_owes_and_is_then_multiplied(void **state) {
  for (size_t n = 0; n <= LONGEST; n++) {
    rows r = random_rows(), before = r;
    double found = ad_fit_kernels()->pass(r.x, n, &(fit_passing){r.v, r.w, r.u, r.y});
    for (size_t j = 0; j <= LONGEST; j++) {
      double row = before.x[j] - (r.v[n] * r.w[j] + r.w[n] * r.v[j]), product = before.y[j] + r.u[n] * row;
      assert_true(r.x[j] == (j < n ? row : before.x[j]) && r.y[j] == (j < n ? product : before.y[j]));
    }
    assert_sum_near(found, 0, r.x, r.u, n);
  }
}

static void a_rotation_keeps_the_length(void **state) {
  for (size_t n = 0; n <= LONGEST; n++) {
    rows r = random_rows(), before = r;
    ad_fit_kernels()->rotate(r.x, r.y, 0.6, 0.8, n);
    for (size_t i = 0; i <= LONGEST; i++) {
      double x = before.x[i], y = before.y[i];
      assert_true(r.x[i] == (i < n ? 0.6 * x + 0.8 * y : x) && r.y[i] == (i < n ? 0.6 * y - 0.8 * x : y));
    }
  }
}

static void a_multiple_is_added_to_its_elements_alone(void **state) {
  for (size_t n = 0; n <= LONGEST; n++) {
    rows r = random_rows(), before = r;
    ad_fit_kernels()->add(r.x, -1.5, r.y, n);
    for (size_t i = 0; i <= LONGEST; i++) assert_true(r.x[i] == before.x[i] + (i < n ? -1.5 * r.y[i] : 0));
    assert_sum_near(ad_fit_kernels()->dot(r.v, r.w, n), 0, r.v, r.w, n);
  }
}

static void a_multiple_and_its_size_are_added_to_their_elements_alone(void **state) {
  for (size_t n = 0; n <= LONGEST; n++) {
    rows r = random_rows(), before = r;
    ad_fit_kernels()->add_sized(r.x, r.u, -1.5, r.y, n);
    for (size_t i = 0; i <= LONGEST; i++) {
      assert_true(r.x[i] == before.x[i] + (i < n ? -1.5 * r.y[i] : 0));
      assert_true(r.u[i] == before.u[i] + (i < n ? fabs(-1.5 * r.y[i]) : 0));
    }
  }
}

typedef struct columns {
  float of[AD_FIT_COLUMNS][LONGEST + 1];
  const float *at[AD_FIT_COLUMNS];
  double factors[AD_FIT_COLUMNS];
} columns;

static void fill_columns(const rows *r, size_t at, columns *out) {
  for (size_t k = 0; k < AD_FIT_COLUMNS; k++) {
    for (size_t i = 0; i <= LONGEST; i++) out->of[k][i] = (float)(r->v[i] * (double)(k + 1) + r->w[LONGEST - i]);
    out->at[k] = out->of[k] + at;
    out->factors[k] = 0.3 - 0.7 * (double)k;
  }
}

/* Columns are added in their order, so the bits are those of adding one after the other. */
static void columns_of_floats_are_added_as_one_by_one(void **state) {
  for (size_t count = 0; count <= AD_FIT_COLUMNS; count++)
    for (size_t n = 0; n <= LONGEST; n++) {
      rows r = random_rows(), one_by_one = r;
      columns c;
      fill_columns(&r, 0, &c);
      ad_fit_kernels()->add_sized_floats(r.x, r.u, c.factors, c.at, count, n);
      for (size_t k = 0; k < count; k++) {
        double wide[LONGEST + 1];
        for (size_t i = 0; i <= LONGEST; i++) wide[i] = (double)c.of[k][i];
        ad_fit_kernels()->add_sized(one_by_one.x, one_by_one.u, c.factors[k], wide, n);
      }
      assert_memory_equal(&r, &one_by_one, sizeof r);
    }
}

/* Runs all loops one after another, starting at either element of an aligned pair. */
static rows run(const fit_kernels *kernels, size_t at, size_t n) {
  rows r = random_rows();
  columns c;
  fill_columns(&r, at, &c);
  kernels->add_sized_floats(r.x + at, r.w + at, c.factors, c.at, AD_FIT_COLUMNS, n);
  kernels->add(r.x + at, 0.3, r.y + at, n);
  kernels->add_sized(r.u + at, r.w + at, 0.7, r.v + at, n);
  kernels->rotate(r.x + at, r.y + at, 0.28, 0.96, n);
  r.x[LONGEST] = kernels->pass(r.x + at, n, &(fit_passing){r.v + at, r.w + at, r.u + at, r.y + at});
  r.y[LONGEST] = kernels->dot(r.v + at, r.w + at, n);
  return r;
}

static void every_variant_gives_rows_of_the_same_bits(void **state) {
  for (size_t n = 0; n < LONGEST; n++) {
    for (size_t at = 0; at < 2 && at + n < LONGEST; at++) {
      rows plain = run(kernels_of(AD_PLAIN), at, n);
      for (int v = AD_PLAIN + 1; v <= (int)ad_kernels_best(); v++) {
        rows wide = run(kernels_of(v), at, n);
        assert_memory_equal(&plain, &wide, sizeof plain);
      }
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_of_all_columns_are_added_to_the_upper_triangle),
      cmocka_unit_test(every_variant_gives_products_of_the_same_bits),
      cmocka_unit_test(a_product_does_not_know_how_many_columns_there_are),
      cmocka_unit_test(a_value_that_is_no_number_stays_in_its_columns_products),
      cmocka_unit_test(a_row_loses_what_it_owes_and_is_then_multiplied),
      cmocka_unit_test(a_rotation_keeps_the_length),
      cmocka_unit_test(a_multiple_is_added_to_its_elements_alone),
      cmocka_unit_test(a_multiple_and_its_size_are_added_to_their_elements_alone),
      cmocka_unit_test(columns_of_floats_are_added_as_one_by_one),
      cmocka_unit_test(every_variant_gives_rows_of_the_same_bits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
