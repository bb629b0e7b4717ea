/* Eigenvectors of a symmetric matrix: reflections bring it to three diagonals, sweeps of rotations those to one (Golub
 * and Van Loan, Matrix Computations, 8.3; the order from the last row to the first is that of EISPACK's tred2 and
 * tql2). Every vector is a row, so that all loops go along memory. */
#include "diff/eigen.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "diff/fit_kernel.h"

enum {
  SWEEPS = 16, /* that are kept and then applied together, while the rows that they touch are in a cache */
  WIDTH = 128, /* columns that they are applied to at a time */
  GROUP = 8,   /* reflections that are applied together */
  SWEEPS_A_VALUE = 30
};

typedef struct ad_eigen_work {
  const fit_kernels *kernels;
  double *rows; /* n x n */
  size_t n;
  double *diagonal, *beside;        /* n; beside[i] couples i and i + 1 */
  double *factors;                  /* n: of the reflection that was made of a row */
  double *w, *product;              /* n */
  double *cosines, *sines;          /* SWEEPS x n */
  size_t low[SWEEPS], high[SWEEPS]; /* a sweep's rotations k, of rows k and k + 1: low <= k < high */
  size_t sweeps;
} ad_eigen_work;

static double *row_of(const ad_eigen_work *work, size_t i) { return work->rows + i * work->n; }

/* ---- to three diagonals ---- */

/* What is so far below the largest element, which is about 1, is taken for nothing: its square still has all digits. */
#define NOTHING_SQUARE 1e-280

/* Makes of x the vector u whose reflection I - factor u u' leaves of x its last element alone, and returns that. */
static double make_reflection(const fit_kernels *kernels, double *x, size_t n, double *factor) {
  double last = x[n - 1], square = kernels->dot(x, x, n - 1);
  x[n - 1] = 1;
  *factor = 0;
  if (square < NOTHING_SQUARE) return last;
  double length = -copysign(sqrt(last * last + square), last), scale = 1 / (last - length);
  for (size_t i = 0; i < n - 1; i++) x[i] *= scale;
  *factor = (length - last) / length;
  return length;
}

/* product = rows 0..i-1 times u, after what the reflection before owes them was taken away. */
static void multiply(ad_eigen_work *work, size_t i, const fit_passing *passing) {
  memset(passing->product, 0, i * sizeof *passing->product);
  for (size_t r = 0; r < i; r++) {
    double *row = row_of(work, r), along = work->kernels->pass(row, r, passing);
    row[r] -= 2 * passing->v[r] * passing->w[r];
    passing->product[r] += along + row[r] * passing->u[r];
  }
}

/* Both sides' reflection is A - u w' - w u' with w = factor A u - (factor^2 u'A u / 2) u. It is taken away when the
 * next one reads the rows, so that each row passes once for each reflection. */
static void to_three_diagonals(ad_eigen_work *work) {
  const fit_kernels *kernels = work->kernels;
  double *w = work->w, *product = work->product;
  const double *v = w; /* zeros */
  for (size_t i = work->n - 1;; i--) {
    double *row = row_of(work, i), factor;
    kernels->add(row, -v[i], w, i + 1);
    kernels->add(row, -w[i], v, i + 1);
    work->diagonal[i] = row[i];
    if (!i) return;
    work->beside[i - 1] = make_reflection(kernels, row, i, &factor);
    work->factors[i] = factor;
    multiply(work, i, &(fit_passing){v, w, row, product});
    for (size_t j = 0; j < i; j++) product[j] *= factor;
    kernels->add(product, -0.5 * factor * kernels->dot(product, row, i), row, i);
    double *other = w;
    w = product, product = other, v = row;
  }
}

static void reflect(const fit_kernels *kernels, double *x, double factor, const double *u, size_t n) {
  if (factor != 0) kernels->add(x, -factor * kernels->dot(x, u, n), u, n);
}

/* Reflections first .. end-1, in this order, from the right. Each row is finished before the next. */
static void reflect_rows(ad_eigen_work *work, const double *vectors, size_t first, size_t end) {
  for (size_t r = 0; r < end; r++) {
    double *row = row_of(work, r);
    for (size_t i = first > r ? first : r + 1; i < end; i++)
      reflect(work->kernels, row, work->factors[i], vectors + (i - first) * work->n, i);
  }
}

/* Multiplies the reflections, each of which stands in its row's lower triangle, in place: the first i rows and columns
 * are the product of the first i. Vectors wait where rotations will be. */
static void multiply_reflections(ad_eigen_work *work) {
  size_t n = work->n;
  for (size_t first = 0, end; first < n; first = end) {
    end = first + GROUP < n ? first + GROUP : n;
    memcpy(work->cosines, row_of(work, first), (end - first) * n * sizeof *work->cosines);
    memset(row_of(work, first), 0, (end - first) * n * sizeof(double));
    for (size_t r = first; r < end; r++) row_of(work, r)[r] = 1;
    reflect_rows(work, work->cosines, first, end);
  }
}

/* ---- to one ---- */

/* Applies the sweeps that were kept. All go from the last row to the first, each one row behind the one before it. */
static void turn_columns(ad_eigen_work *work, size_t begin, size_t width, size_t bottom, size_t top) {
  for (size_t wave = 1; wave < top - bottom + work->sweeps; wave++)
    for (size_t s = 0; s < work->sweeps; s++) {
      size_t k = top - wave + s; /* wraps around below 0; such rows are in no sweep */
      if (k < work->low[s] || k >= work->high[s]) continue;
      double *row = row_of(work, k) + begin;
      work->kernels->turn(row + work->n, row, work->cosines[s * work->n + k], work->sines[s * work->n + k], width);
    }
}

static void turn_rows(ad_eigen_work *work) {
  size_t bottom = work->n, top = 0, n = work->n;
  for (size_t s = 0; s < work->sweeps; s++) {
    if (work->low[s] < bottom) bottom = work->low[s];
    if (work->high[s] > top) top = work->high[s];
  }
  for (size_t begin = 0; begin < n && work->sweeps; begin += WIDTH)
    turn_columns(work, begin, n - begin < WIDTH ? n - begin : WIDTH, bottom, top);
  work->sweeps = 0;
}

/* The eigenvalue of the first two rows of a block that is nearer to the first (Wilkinson's shift). */
static double find_shift(const double *diagonal, double beside) {
  double half = (diagonal[1] - diagonal[0]) / 2;
  return diagonal[0] - beside * (beside / (half + copysign(hypot(half, beside), half)));
}

/* One implicit step from row `high` to row `low`. `bulge` is the element that a rotation leaves outside the three
 * diagonals, and the next one removes. */
static void sweep(ad_eigen_work *work, size_t low, size_t high) {
  double *d = work->diagonal, *e = work->beside;
  double *cosines = work->cosines + work->sweeps * work->n, *sines = work->sines + work->sweeps * work->n;
  double along = d[high] - find_shift(d + low, e[low]), bulge = e[high - 1];
  for (size_t k = high; k-- > low;) {
    double length = hypot(along, bulge), c = length > 0 ? along / length : 1, s = length > 0 ? bulge / length : 0;
    double move = s * (d[k] - d[k + 1]) + 2 * c * e[k];
    if (k + 1 < high) e[k + 1] = length;
    d[k + 1] += s * move;
    d[k] -= s * move;
    along = e[k] = c * move - e[k];
    if (k > low) bulge = s * e[k - 1], e[k - 1] *= c;
    cosines[k] = c, sines[k] = s;
  }
  work->low[work->sweeps] = low;
  work->high[work->sweeps++] = high;
  if (work->sweeps == SWEEPS) turn_rows(work);
}

/* Nothing beside its neighbours on the diagonal, or beside the whole matrix, whose largest element was about 1. */
static int is_nothing(const ad_eigen_work *work, size_t k) {
  double near = fabs(work->diagonal[k]) + fabs(work->diagonal[k + 1]);
  return fabs(work->beside[k]) <= fmax(DBL_EPSILON * near, DBL_EPSILON * DBL_EPSILON);
}

static ad_status to_one_diagonal(ad_eigen_work *work) {
  size_t n = work->n, left = SWEEPS_A_VALUE * n;
  for (size_t low = 0; low + 1 < n;) {
    size_t high = low;
    while (high + 1 < n && !is_nothing(work, high)) high++;
    if (high == low) {
      low++;
      continue;
    }
    if (!left--)
      return ad_fail(AD_NUMBER, "eigenvalue %zu of %zu is not found in %d steps for each", low + 1, n, SWEEPS_A_VALUE);
    sweep(work, low, high);
  }
  turn_rows(work);
  return AD_OK;
}

/* ---- the whole ---- */

static void swap_rows(double *x, double *y, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double was = x[i];
    x[i] = y[i];
    y[i] = was;
  }
}

static void sort(ad_eigen_work *work) {
  for (size_t i = 0; i + 1 < work->n; i++) {
    size_t least = i;
    for (size_t k = i + 1; k < work->n; k++)
      if (work->diagonal[k] < work->diagonal[least]) least = k;
    if (least == i) continue;
    swap_rows(work->diagonal + i, work->diagonal + least, 1);
    swap_rows(row_of(work, i), row_of(work, least), work->n);
  }
}

static ad_status find_vectors(ad_eigen_work *work) {
  to_three_diagonals(work);
  multiply_reflections(work);
  AD_TRY(to_one_diagonal(work));
  sort(work);
  return AD_OK;
}

/* The power of two of the largest element, 0 where all are nothing. Returns 0 if one is not finite. */
static int find_exponent(const double *matrix, size_t n, int *out) {
  double most = 0;
  for (size_t i = 0; i < n * n; i++) {
    if (!isfinite(matrix[i])) return 0;
    most = fmax(most, fabs(matrix[i]));
  }
  frexp(most, out);
  return 1;
}

static void fill(double *values, size_t n, double value) {
  for (size_t i = 0; i < n; i++) values[i] = value;
}

static void scale(double *values, size_t n, int exponent) {
  if (exponent)
    for (size_t i = 0; i < n; i++) values[i] = ldexp(values[i], exponent);
}

ad_status ad_eigen_solve(double *matrix, size_t n, double *values) {
  ad_eigen_work work = {.kernels = ad_fit_kernels(), .rows = matrix, .n = n, .diagonal = values};
  int exponent;
  if (!find_exponent(matrix, n, &exponent)) {
    fill(matrix, n * n, NAN);
    fill(values, n, NAN);
    return AD_OK;
  }
  if (!n) return AD_OK;
  AD_TRY(ad_new((4 + 2 * SWEEPS) * n, &work.beside));
  work.factors = work.beside + n;
  work.w = work.factors + n;
  work.product = work.w + n;
  work.cosines = work.product + n;
  work.sines = work.cosines + SWEEPS * n;
  scale(matrix, n * n, -exponent);
  ad_status status = find_vectors(&work);
  scale(values, n, exponent);
  ad_release(work.beside);
  return status;
}
