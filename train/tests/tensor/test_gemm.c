/* Tests matrix products against f64: every transpose, stride and dtype, within the rounding of its arithmetic. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "kernels/kernels.h"
#include "base/memory.h"
#include "addend/helpers.h"
#include "base/injection.h"
#include "draw.h"
#include "products/gemm_split.h"
#include "tensor/known_bugs.h"

/* ---- matrices of any dtype and stride ---- */

typedef struct matrix {
  ad_dtype dtype;
  int64_t rows, columns, stride; /* shape in memory, before any transpose */
  char *data;
} matrix;

/* Fills the gaps between rows, which a product must not change: larger than any value of a test, exact
 * in every dtype. */
static const double between = 12288;

static double value_of(const matrix *of, int64_t row, int64_t column) {
  double value;
  const char *at = of->data + (size_t)(row * of->stride + column) * ad_dtype_size(of->dtype);
  ad_cast(&value, AD_F64, at, of->dtype, 1);
  return value;
}

static void set_value(matrix *of, int64_t row, int64_t column, double value) {
  ad_cast(of->data + (size_t)(row * of->stride + column) * ad_dtype_size(of->dtype), of->dtype, &value, AD_F64, 1);
}

/* Writes a whole row, with the gap behind it. */
static void set_row(matrix *of, int64_t row, const double *values) {
  char *at = of->data + (size_t)(row * of->stride) * ad_dtype_size(of->dtype);
  ad_cast(at, of->dtype, values, AD_F64, (size_t)of->stride);
}

static size_t bytes_of(const matrix *of) { return (size_t)((of->rows + 1) * of->stride) * ad_dtype_size(of->dtype); }

static matrix make(ad_dtype dtype, int64_t rows, int64_t columns, int64_t gap, uint64_t seed) {
  matrix made = {dtype, rows, columns, columns + gap, NULL};
  made.data = malloc(bytes_of(&made) + 1);
  assert_non_null(made.data);
  double *values = malloc((size_t)made.stride * sizeof *values + 1);
  assert_non_null(values);
  for (int64_t i = 0; i < made.stride; i++) values[i] = between;
  set_row(&made, rows, values);
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t column = 0; column < columns; column++)
      values[column] = 2 * ad_random_uniform(seed, (uint64_t)row, (uint64_t)column) - 1;
    set_row(&made, row, values);
  }
  free(values);
  return made;
}

static matrix copy_of(const matrix *of) {
  matrix copy = *of;
  copy.data = malloc(bytes_of(of) + 1);
  assert_non_null(copy.data);
  memcpy(copy.data, of->data, bytes_of(of));
  return copy;
}

/* ---- one product and its error bound ---- */

typedef struct trial {
  ad_dtype values, result;
  int64_t m, n, k, gap;
  int a_transposed, b_transposed, adds;
  double factor;
} trial;

typedef struct operands {
  matrix a, b, c;
  double *left, *right;    /* a [m, k] and the transpose of b [n, k], in f64 */
  double *sums, *absolute; /* [m, n]: the sum of the k products, and of their absolute values; NULL: not computed yet */
} operands;

static double *copy_values(const matrix *from, int transposed) {
  int64_t rows = transposed ? from->columns : from->rows, columns = transposed ? from->rows : from->columns;
  double *values = malloc((size_t)(rows * columns) * sizeof *values + 1);
  double *as_it_lies = malloc((size_t)(from->rows * from->stride) * sizeof *values + 1);
  assert_true(values && as_it_lies);
  ad_cast(as_it_lies, AD_F64, from->data, from->dtype, (size_t)(from->rows * from->stride));
  for (int64_t row = 0; row < rows; row++)
    for (int64_t column = 0; column < columns; column++)
      values[row * columns + column] =
          as_it_lies[transposed ? column * from->stride + row : row * from->stride + column];
  free(as_it_lies);
  return values;
}

static operands make_operands(const trial *of) {
  operands at = {make(of->values, of->a_transposed ? of->k : of->m, of->a_transposed ? of->m : of->k, of->gap, 1),
                 make(of->values, of->b_transposed ? of->n : of->k, of->b_transposed ? of->k : of->n, of->gap, 2),
                 make(of->result, of->m, of->n, of->gap, 3),
                 NULL,
                 NULL,
                 NULL,
                 NULL};
  at.left = copy_values(&at.a, of->a_transposed);
  at.right = copy_values(&at.b, !of->b_transposed);
  return at;
}

static void free_operands(operands *of) {
  free(of->left);
  free(of->right);
  free(of->sums);
  free(of->absolute);
  free(of->a.data);
  free(of->b.data);
  free(of->c.data);
}

static void multiply(const trial *of, const operands *at, matrix *c) {
  ad_gemm(of->values, of->result, of->m, of->n, of->k, of->factor,
          (ad_matrix){at->a.data, at->a.stride, of->a_transposed},
          (ad_matrix){at->b.data, at->b.stride, of->b_transposed}, of->adds, c->data, c->stride);
  assert_int_equal(ad_gemm_status(), AD_OK);
}

/* Unit roundoff: half a unit in the last place, relative. */
static double rounding_of(ad_dtype dtype) { return dtype == AD_F64 ? 0x1p-53 : dtype == AD_F32 ? 0x1p-24 : 0x1p-8; }

typedef struct expected {
  double value, bound;
} expected;

static void make_sums(const trial *of, operands *at) {
  at->sums = calloc((size_t)(of->m * of->n) + 1, sizeof *at->sums);
  at->absolute = calloc((size_t)(of->m * of->n) + 1, sizeof *at->absolute);
  assert_true(at->sums && at->absolute);
  for (int64_t row = 0; row < of->m; row++)
    for (int64_t column = 0; column < of->n; column++) {
      double sum = 0, absolute = 0;
      for (int64_t i = 0; i < of->k; i++) {
        double term = at->left[row * of->k + i] * at->right[column * of->k + i];
        sum += term;
        absolute += fabs(term);
      }
      at->sums[row * of->n + column] = sum;
      at->absolute[row * of->n + column] = absolute;
    }
}

/* The bound: a sum of k products and of the old value, in any order, has at most k additions and k products to round,
 * and the factor is one more; each rounding errs by at most the unit times the sum of absolute values (Higham, Accuracy
 * and Stability, 3.1). The result is rounded once more. The f64 reference has the same bound in f64. */
static expected expect(const trial *of, const operands *at, int64_t row, int64_t column) {
  double sum = of->factor * at->sums[row * of->n + column];
  double absolute = fabs(of->factor) * at->absolute[row * of->n + column];
  double before = of->adds ? value_of(&at->c, row, column) : 0;
  double unit = rounding_of(ad_dtype_wide(of->values)) + 0x1p-53;
  double terms = (double)of->k + 4, growth = terms * unit / (1 - terms * unit);
  expected out = {sum + before, growth * (absolute + fabs(before))};
  if (of->result == AD_BF16) out.bound += rounding_of(AD_BF16) * (fabs(out.value) + out.bound);
  return out;
}

static int is_within(const trial *of, operands *at, const matrix *c) {
  if (!at->sums) make_sums(of, at);
  for (int64_t row = 0; row < of->m; row++)
    for (int64_t column = 0; column < of->n; column++) {
      expected right = expect(of, at, row, column);
      if (!(fabs(value_of(c, row, column) - right.value) <= right.bound)) return 0;
    }
  return 1;
}

/* Whether nothing but the m x n values of c was written. */
static int is_whole(const matrix *c) {
  for (int64_t row = 0; row <= c->rows; row++)
    for (int64_t column = row < c->rows ? c->columns : 0; column < c->stride; column++)
      if (value_of(c, row, column) != between) return 0;
  return 1;
}

static void try_with(const trial *of, operands *at) {
  matrix c = copy_of(&at->c);
  multiply(of, at, &c);
  if (!is_within(of, at, &c) || !is_whole(&c))
    fail_msg("%s -> %s, %d x %d x %d, gap %d, transposed %d %d, adds %d, factor %g", ad_dtype_name(of->values),
             ad_dtype_name(of->result), (int)of->m, (int)of->n, (int)of->k, (int)of->gap, of->a_transposed,
             of->b_transposed, of->adds, of->factor);
  free(c.data);
}

static void try_product(const trial *of) {
  operands at = make_operands(of);
  try_with(of, &at);
  free_operands(&at);
}

static const struct {
  ad_dtype values, result;
} dtypes[] = {{AD_F64, AD_F64}, {AD_F32, AD_F32}, {AD_BF16, AD_BF16}, {AD_BF16, AD_F32}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static void each_flag(trial of) {
  for (int place = 0; place < 8; place++) {
    of.a_transposed = place & 1;
    of.b_transposed = place >> 1 & 1;
    of.gap = place >> 2 & 1 ? 3 : 0;
    operands at = make_operands(&of);
    for (int flags = 0; flags < 4; flags++) {
      of.adds = flags & 1;
      of.factor = flags >> 1 & 1 ? -0.3 : 1;
      try_with(&of, &at);
    }
    free_operands(&at);
  }
}

static void products_are_as_good_as_their_arithmetic(void **state) {
  static const int64_t sizes[][3] = {{1, 1, 1},    {1, 7, 5},     {7, 1, 33},   {5, 9, 1},
                                     {16, 32, 64}, {33, 17, 65},  {64, 96, 48}, {1, 64, 200},
                                     {130, 3, 70}, {65, 129, 31}, {65, 3, 63}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int d = 0; d < DTYPES; d++)
      each_flag((trial){dtypes[d].values, dtypes[d].result, sizes[i][0], sizes[i][1], sizes[i][2], .factor = 1});
}

/* Products larger than one block in every dimension. */
static void large_products_are_too(void **state) {
  enum { FLAGS = 3, LARGE = (DTYPES - 1) * FLAGS };
  draw drawn = draw_cases("large products", LARGE, 0, 2);
  for (int i = 0; i < LARGE; i++) {
    int d = 1 + i / FLAGS, flags = i % FLAGS;
    if (is_drawn(&drawn, i))
      try_product(
          &(trial){dtypes[d].values, dtypes[d].result, 260, 520, 1030, 2, flags & 1, flags >> 1, flags & 1, 0.5});
  }
}

static void products_of_nothing_give_zeros_or_change_nothing(void **state) {
  static const int64_t sizes[][3] = {{4, 5, 0}, {0, 5, 4}, {4, 0, 5}, {0, 0, 0}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int d = 0; d < DTYPES; d++)
      each_flag((trial){dtypes[d].values, dtypes[d].result, sizes[i][0], sizes[i][1], sizes[i][2], .factor = 1});
}

/* ---- products cut in two pieces along k ---- */

/* The sum of both pieces, wherever k is cut, is rounded once, so it is as good as the whole product. */
static void products_split_in_two_are_as_good_as_full_ones(void **state) {
  gemm_splits splits = {.seed = 1};
  ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){ad_gemm_split, &splits});
  products_are_as_good_as_their_arithmetic(state);
  ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){0});
  assert_true(splits.made > 100);
}

static int differ(const trial *of, const gemm_splits *from) {
  operands at = make_operands(of);
  matrix full = copy_of(&at.c), split = copy_of(&at.c);
  gemm_splits splits = *from;
  multiply(of, &at, &full);
  ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){ad_gemm_split, &splits});
  multiply(of, &at, &split);
  ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){0});
  int found = 0;
  for (int64_t row = 0; row < of->m; row++)
    for (int64_t column = 0; column < of->n; column++)
      found += value_of(&full, row, column) != value_of(&split, row, column);
  free(full.data);
  free(split.data);
  free_operands(&at);
  return found;
}

/* Cut products make the reference's draws differ in rounding: in f32 most elements differ; in bf16 few do, unless each
 * piece is rounded. */
static void a_split_product_rounds_otherwise(void **state) {
  trial f32 = {AD_F32, AD_F32, 40, 50, 300, .factor = 1}, narrow = {AD_BF16, AD_BF16, 40, 50, 300, .factor = 1};
  assert_true(differ(&f32, &(gemm_splits){.seed = 1}) > 1000);
  assert_true(differ(&narrow, &(gemm_splits){.seed = 1}) < 40);
  assert_true(differ(&narrow, &(gemm_splits){.seed = 1, .rounds_between = 1}) > 400);
}

/* ---- rounding in bf16 ---- */

/* Multiplies as a unit would that rounds its sum to bf16 after every `steps` terms. */
static void multiply_narrowly(const trial *of, const operands *at, matrix *c, int64_t steps) {
  for (int64_t row = 0; row < of->m; row++)
    for (int64_t column = 0; column < of->n; column++) {
      float sum = 0;
      for (int64_t i = 0; i < of->k; i++) {
        sum += (float)(at->left[row * of->k + i] * at->right[column * of->k + i]);
        if (i % steps != steps - 1) continue;
        uint16_t kept;
        ad_cast(&kept, AD_BF16, &sum, AD_F32, 1);
        ad_cast(&sum, AD_F32, &kept, AD_BF16, 1);
      }
      set_value(c, row, column, sum);
    }
}

static void sums_kept_in_bf16_are_seen(void **state) {
  for (int d = 0; d < DTYPES; d++) {
    trial of = {dtypes[d].values, dtypes[d].result, 16, 16, 256, .factor = 1};
    if (of.values != AD_BF16) continue;
    operands at = make_operands(&of);
    for (int64_t steps = 1; steps <= 64; steps *= 2) {
      multiply_narrowly(&of, &at, &at.c, steps);
      assert_false(is_within(&of, &at, &at.c));
    }
    multiply_narrowly(&of, &at, &at.c, of.k + 1);
    assert_true(is_within(&of, &at, &at.c));
    free_operands(&at);
  }
}

/* 2^-8 of c is half a unit of bf16: if the product were rounded before it is added, 2^-10 of it would be lost. */
static void a_result_in_bf16_is_rounded_once(void **state) {
  uint16_t a[2], b[2], c;
  const double values[2] = {0x1p-8, 0x1p-8 + 0x1p-15}, ones[2] = {1, 0x1p-3}, one = 1;
  ad_cast(a, AD_BF16, values, AD_F64, 2);
  ad_cast(b, AD_BF16, ones, AD_F64, 2);
  ad_cast(&c, AD_BF16, &one, AD_F64, 1);
  ad_matrix left = {a, 2, 0}, right = {b, 1, 0};
  /* 1 + 0.9 (2^-8 + 2^-11) is more than half a unit above 1 */
  ad_gemm(AD_BF16, AD_BF16, 1, 1, 2, 0.9, left, right, 1, &c, 1);
  double got;
  ad_cast(&got, AD_F64, &c, AD_BF16, 1);
  assert_true(got == 1 + 0x1p-7);
  assert_int_equal(ad_gemm_status(), AD_OK);
}

static void what_is_no_number_passes(void **state) {
  static const double odd[] = {NAN, INFINITY, -INFINITY};
  for (int d = 0; d < DTYPES; d++)
    for (int i = 0; i < 3; i++) {
      trial of = {dtypes[d].values, dtypes[d].result, 20, 24, 40, .factor = 1};
      operands at = make_operands(&of);
      set_value(&at.a, 7, 11, odd[i]);
      set_value(&at.c, 3, 3, NAN); /* the old result is not read */
      multiply(&of, &at, &at.c);
      for (int64_t row = 0; row < of.m; row++)
        for (int64_t column = 0; column < of.n; column++) {
          double got = value_of(&at.c, row, column), b = value_of(&at.b, 11, column);
          assert_true(row != 7 ? isfinite(got) : isnan(odd[i]) ? isnan(got) : got == (b > 0 ? odd[i] : -odd[i]));
        }
      free_operands(&at);
    }
}

/* ---- the same bits in every thread, and memory ---- */

typedef struct run {
  const trial *of;
  const operands *at;
  matrix c;
} run;

static void *run_once(void *argument) {
  run *one = argument;
  multiply(one->of, one->at, &one->c);
  return NULL;
}

static void every_thread_has_the_same_bits(void **state) {
  enum { THREADS = 4 };
  for (int d = 0; d < DTYPES; d++) {
    trial of = {dtypes[d].values, dtypes[d].result, 70, 90, 300, 1, 1, 0, 1, 0.7};
    operands at = make_operands(&of);
    run runs[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
      runs[i] = (run){&of, &at, copy_of(&at.c)};
      assert_int_equal(pthread_create(&threads[i], NULL, run_once, &runs[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    run_once(&(run){&of, &at, at.c});
    for (int i = 0; i < THREADS; i++) {
      assert_memory_equal(runs[i].c.data, at.c.data, bytes_of(&at.c));
      free(runs[i].c.data);
    }
    free_operands(&at);
  }
}

static void *run_without_memory(void *argument) {
  const trial *of = argument;
  operands at = make_operands(of);
  ad_matrix a = {at.a.data, at.a.stride, 0}, b = {at.b.data, at.b.stride, 0};
  ad_memory_fail_at(1);
  ad_gemm(AD_BF16, AD_F32, of->m, of->n, of->k, 1, a, b, 0, at.c.data, at.c.stride);
  ad_gemm(AD_BF16, AD_F32, of->m, of->n, of->k, 1, a, b, 0, at.c.data, at.c.stride);
  ad_memory_fail_at(0);
  ad_status first = ad_gemm_status(), second = ad_gemm_status();
  free_operands(&at);
  return first == AD_MEMORY && second == AD_OK ? argument : NULL;
}

static void a_product_without_memory_says_so_once(void **state) {
  trial of = {AD_BF16, AD_F32, 4, 4, 4, .factor = 1};
  pthread_t thread; /* the new thread has no memory for products yet */
  void *result = NULL;
  assert_int_equal(pthread_create(&thread, NULL, run_without_memory, &of), 0);
  pthread_join(thread, &result);
  assert_ptr_equal(result, &of);
}

/* The mutant only rounds differently: its product is near the right one, but not equal. */
static void the_injected_product_rounds_and_does_nothing_else(void **state) {
  trial of = {AD_BF16, AD_BF16, 20, 30, 301, .factor = 1};
  operands at = make_operands(&of);
  matrix right = copy_of(&at.c), injected = copy_of(&at.c);
  size_t count, i = 0;
  const ad_known_bug *bugs = ad_tensor_known_bugs(&count);
  while (i < count && strcmp(bugs[i].name, "product-sums-in-bf16") != 0) i++;
  assert_true(i < count);
  multiply(&of, &at, &right);
  ad_known_bug_scene scene = {0};
  ad_known_bug_inject(&bugs[i], &scene);
  multiply(&of, &at, &injected);
  ad_injections_clear();
  double apart = 0, full = 0;
  for (int64_t row = 0; row < of.m; row++)
    for (int64_t column = 0; column < of.n; column++) {
      apart += pow(value_of(&injected, row, column) - value_of(&right, row, column), 2);
      full += pow(value_of(&right, row, column), 2);
    }
  assert_true(scene.fired && is_whole(&injected));
  assert_true(apart > 0 && sqrt(apart / full) < 5e-2);
  free(right.data);
  free(injected.data);
  free_operands(&at);
}

/* ---- which library computes a product ---- */

static void each_rank_chooses_by_what_all_have(void **state) {
  const ad_products some = {AD_UNITS_AVX512, AD_LIBRARY_BY_TABLE, 20603, 0},
                    more = {AD_UNITS_AMX, AD_LIBRARY_ONEDNN, 20603, 0},
                    other = {AD_UNITS_AMX, AD_LIBRARY_ONEDNN, 30602, 0};
  ad_products common = ad_products_common(some, more);
  assert_int_equal(common.units, AD_UNITS_AVX512);
  assert_int_equal(common.onednn, 20603);
  assert_int_equal(common.library, AD_LIBRARY_BY_TABLE);
  common = ad_products_common(more, other);
  assert_int_equal(common.onednn, 0);
  assert_int_equal(common.library, AD_LIBRARY_ONEDNN);
  common = ad_products_unpacked(ad_products_packed(other));
  assert_memory_equal(&common, &other, sizeof other);
}

static gemm_way way_of(ad_products with, ad_dtype values, int64_t m, int64_t n, int64_t k) {
  gemm_product of = {.values = values, .m = m, .n = n, .k = k, .a.stride = k, .b.stride = n};
  return ad_gemm_choose(&with, &of);
}

static void what_is_not_there_is_not_chosen(void **state) {
  for (ad_units units = AD_UNITS_PLAIN; units <= AD_UNITS_AMX; units++)
    for (ad_library library = AD_LIBRARY_BY_TABLE; library <= AD_LIBRARY_BY_FILE; library++) {
      ad_products none = {units, library, 0, 0}, both = {units, library, 20603, 0};
      assert_int_equal(way_of(none, AD_F32, 64, 64, 64), GEMM_BLAS);
      assert_int_equal(way_of(none, AD_BF16, 64, 64, 64), GEMM_WIDEN_BLAS);
      assert_int_equal(way_of(both, AD_F64, 64, 64, 64), GEMM_BLAS);
      assert_int_equal(way_of(both, AD_F32, 64, 0, 64), GEMM_BLAS);
      assert_int_equal(way_of(both, AD_BF16, 64, 64, 0), GEMM_WIDEN_BLAS);
    }
  ad_products units = {AD_UNITS_AMX, AD_LIBRARY_BY_TABLE, 20603, 0};
  assert_int_equal(way_of(units, AD_BF16, 64, 64, 64), GEMM_ONEDNN);
}

/* bf16 instructions make products faster on some processors and slower on others that have the same instructions. */
static void products_in_bf16_are_made_where_they_are_fast(void **state) {
  ad_products slow = {AD_UNITS_AVX512BF16, AD_LIBRARY_BY_TABLE, 20603, 0}, fast = slow;
  fast.units = AD_UNITS_FAST_BF16;
  assert_int_equal(way_of(slow, AD_BF16, 512, 512, 512), GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(slow, AD_BF16, 1, 512, 512), GEMM_ONEDNN);
  assert_int_equal(way_of(fast, AD_BF16, 512, 512, 512), GEMM_ONEDNN);
  assert_int_equal(way_of(fast, AD_BF16, 64, 64, 64), GEMM_ONEDNN);
  assert_int_equal(way_of(fast, AD_F32, 64, 64, 64), GEMM_BLAS);
  assert_true(ad_products_widen(slow));
  assert_false(ad_products_widen(fast));
}

/* Without AVX-512 oneDNN has no bf16 product, so ranks that ask for oneDNN get bf16 products computed in f32. */
static void bf16_is_widened_where_onednn_has_none(void **state) {
  ad_products asked = {AD_UNITS_AVX2, AD_LIBRARY_ONEDNN, 20603, 0};
  assert_int_equal(way_of(asked, AD_BF16, 8, 16, 128), GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(asked, AD_BF16, 1, 16, 128), GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(asked, AD_F32, 8, 16, 128), GEMM_ONEDNN);
  assert_true(ad_products_widen(asked));
  asked.units = AD_UNITS_AVX512;
  assert_int_equal(way_of(asked, AD_BF16, 8, 16, 128), GEMM_ONEDNN);
}

/* With these shapes oneDNN runs an illegal instruction (its issue 1661), so they are computed in f32. */
static void sums_that_break_matrix_units_are_widened(void **state) {
  ad_products amx = {AD_UNITS_AMX, AD_LIBRARY_BY_TABLE, 20603, 0}, asked = {AD_UNITS_AMX, AD_LIBRARY_ONEDNN, 20603, 0};
  assert_int_equal(way_of(amx, AD_BF16, 65, 3, 63), GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(asked, AD_BF16, 65, 3, 3071), GEMM_WIDEN_ONEDNN);
  assert_int_equal(way_of(asked, AD_BF16, 65, 3, 64), GEMM_ONEDNN);
  assert_int_equal(way_of(asked, AD_F32, 65, 3, 63), GEMM_ONEDNN);
  asked.units = AD_UNITS_AVX512BF16;
  assert_int_equal(way_of(asked, AD_BF16, 65, 3, 63), GEMM_ONEDNN);
}

static void small_products_are_made_where_they_lie(void **state) {
  ad_products units = {AD_UNITS_AVX512, AD_LIBRARY_BY_TABLE, 20603, 0};
  assert_int_equal(way_of(units, AD_F32, 64, 64, 64), GEMM_BLAS);
  assert_int_equal(way_of(units, AD_F32, 64, 65, 64), GEMM_ONEDNN);
  assert_int_equal(way_of(units, AD_F32, INT64_C(1) << 31, 1, 1), GEMM_ONEDNN);
  assert_int_equal(way_of(units, AD_BF16, 64, 64, 64), GEMM_WIDEN_BLAS);
  assert_int_equal(way_of(units, AD_BF16, 64, 64, 65), GEMM_WIDEN_ONEDNN);
  units.units = AD_UNITS_AVX2;
  assert_int_equal(way_of(units, AD_F32, 64, 65, 64), GEMM_BLAS);
}

/* ---- oneDNN's primitives (compiled products), which are kept in a table ---- */

static void multiply_shapes(void) {
  for (int64_t rows = 1; rows <= 80; rows++)
    for (int flags = 0; flags < 8; flags++)
      try_product(&(trial){AD_BF16, flags & 1 ? AD_F32 : AD_BF16, rows, 16, 8, 0, 0, flags >> 1 & 1, flags >> 2, 1});
}

static void a_second_round_makes_no_primitive_and_takes_no_memory(void **state) {
  long before = ad_gemm_onednn_made(ad_gemm_kept());
  multiply_shapes();
  long first = ad_gemm_onednn_made(ad_gemm_kept());
  assert_int_equal(first - before, 80 * 8);
  ad_memory_fail_at(0);
  multiply_shapes();
  assert_int_equal(ad_gemm_onednn_made(ad_gemm_kept()), first);
  assert_int_equal(ad_memory_fail_at(0), 0);
}

/* Many shapes in any order: none is lost while the table grows, and a full table starts over. */
static void more_shapes_than_the_table_holds_are_made_again(void **state) {
  long before = ad_gemm_onednn_made(ad_gemm_kept());
  for (int round = 0; round < 2; round++)
    for (int64_t i = 0; i < 5000; i++) {
      trial of = {AD_BF16, AD_F32, 1 + i % 50, 1 + i / 50, 2, .factor = 1};
      operands at = make_operands(&of);
      multiply(&of, &at, &at.c);
      assert_true(is_within(&of, &at, &at.c));
      free_operands(&at);
    }
  assert_in_range(ad_gemm_onednn_made(ad_gemm_kept()) - before, 5001, 10000);
}

/* Runs the tests as on a processor with `units`; skipped if this processor has no such units. */
static int run_with(ad_library library, ad_units units, const char *name) {
  ad_products own = ad_products_own();
  if (units > own.units) return 0;
  own.units = units;
  own.library = library;
  ad_products_choose(own);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(products_are_as_good_as_their_arithmetic),
      cmocka_unit_test(large_products_are_too),
      cmocka_unit_test(products_of_nothing_give_zeros_or_change_nothing),
      cmocka_unit_test(products_split_in_two_are_as_good_as_full_ones),
      cmocka_unit_test(a_split_product_rounds_otherwise),
      cmocka_unit_test(sums_kept_in_bf16_are_seen),
      cmocka_unit_test(a_result_in_bf16_is_rounded_once),
      cmocka_unit_test(what_is_no_number_passes),
      cmocka_unit_test(every_thread_has_the_same_bits),
      cmocka_unit_test(a_product_without_memory_says_so_once),
  };
  print_message("products by %s, %s\n", name, ad_units_name(units));
  return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

/* oneDNN has no bf16 primitive without AVX-512, so these tests do not run there. */
static int run_with_onednn(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_second_round_makes_no_primitive_and_takes_no_memory),
      cmocka_unit_test(more_shapes_than_the_table_holds_are_made_again),
  };
  if (!ad_onednn_version()) return 0;
  ad_units units = ad_products_own().units;
  return run_with(AD_LIBRARY_ONEDNN, units, "onednn") +
         (units < AD_UNITS_AVX512 ? 0 : cmocka_run_group_tests_name("primitives", tests, NULL, NULL));
}

/* A rank whose world has fewer instructions than its processor must not use more. Needs a process in which oneDNN was
 * not used before. */
static void onednn_takes_no_more_than_all_ranks_have(void **state) {
  uint16_t one = 0x3f80, product = 0;
  ad_products all = ad_products_own();
  if (!ad_onednn_version() || all.units <= AD_UNITS_AVX512) skip();
  all.units = AD_UNITS_AVX512;
  all.library = AD_LIBRARY_ONEDNN;
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    ad_products_choose(all);
    ad_gemm(AD_BF16, AD_BF16, 1, 1, 1, 1, (ad_matrix){&one, 1, 0}, (ad_matrix){&one, 1, 0}, 0, &product, 1);
    _exit(ad_gemm_status() || product != one || strcmp(ad_gemm_onednn_instructions(), "avx512_core") != 0);
  }
  int ended = 0;
  assert_int_equal(waitpid(child, &ended, 0), child);
  assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

/* oneDNN would use matrix units wherever the processor has them, so this runs in a child process like the one above. */
static int run_without_matrix_units(void) {
  if (!ad_onednn_version() || ad_products_own().units < AD_UNITS_AVX512BF16) return 0;
  pid_t child = fork();
  if (!child) _exit(run_with(AD_LIBRARY_BY_TABLE, AD_UNITS_FAST_BF16, "fast bf16"));
  int ended = 0;
  return child < 0 || waitpid(child, &ended, 0) != child || ended;
}

int main(void) {
  const struct CMUnitTest first[] = {cmocka_unit_test(onednn_takes_no_more_than_all_ranks_have)};
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_rank_chooses_by_what_all_have),
      cmocka_unit_test(what_is_not_there_is_not_chosen),
      cmocka_unit_test(products_in_bf16_are_made_where_they_are_fast),
      cmocka_unit_test(bf16_is_widened_where_onednn_has_none),
      cmocka_unit_test(sums_that_break_matrix_units_are_widened),
      cmocka_unit_test(small_products_are_made_where_they_lie),
      cmocka_unit_test(the_injected_product_rounds_and_does_nothing_else),
  };
  int failed = cmocka_run_group_tests_name("instructions", first, NULL, NULL) + run_without_matrix_units();
  if (ad_gemm_prepare()) return 1;
  failed += cmocka_run_group_tests_name("choice", tests, NULL, NULL);
  failed += run_with(AD_LIBRARY_OPENBLAS, ad_products_own().units, "openblas");
  failed += run_with_onednn();  // first with all instructions, since oneDNN keeps to those of its first product
  for (int units = AD_UNITS_AMX; units >= AD_UNITS_PLAIN; units--)
    if (units != AD_UNITS_FAST_BF16) failed += run_with(AD_LIBRARY_BY_TABLE, (ad_units)units, "table");
  return failed;
}
