/* Eigenvectors of a symmetric matrix: Householder reflections make the matrix tridiagonal, then sweeps of rotations
 * make it diagonal (Golub and Van Loan, Matrix Computations, 8.3; from the last row to the first, as EISPACK's tred2
 * and tql2). Every vector is a row, so that all loops read memory in order. */
#include "solve/eigen.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "solve/fit_kernel.h"

enum {
  SWEEPS = 16, /* sweeps that are kept and then applied together, while the rows that they change are in a cache */
  WIDTH = 128, /* number of columns to which the kept sweeps are applied at a time */
  GROUP = 8,   /* reflections that are applied together */
  SWEEPS_A_VALUE = 30 /* limit: the average number of sweeps for an eigenvalue */
};

/* The state of one decomposition. */
typedef struct ad_eigen_work {
  const fit_kernels *kernels;
  double *rows; /* n x n: first the matrix, then reflections, finally the eigenvectors */
  size_t n;
  double *diagonal, *beside;        /* n each; beside[i] is the off-diagonal element that couples i and i + 1 */
  double *factors;                  /* n: for each row, the factor of the reflection that was made of it */
  double *w, *product;              /* n each, scratch: the vector w of the rank-2 update, and the next product */
  double *cosines, *sines;          /* SWEEPS x n: the rotations of the sweeps that are kept */
  size_t low[SWEEPS], high[SWEEPS]; /* sweep s has a rotation of rows k and k + 1 for low[s] <= k < high[s] */
  /* number of sweeps that are kept and not applied yet */
  size_t sweeps;
} ad_eigen_work;

static double *eigen_row(const ad_eigen_work *work, size_t i) { return work->rows + i * work->n; }

/* ---- Householder reflections: making the matrix tridiagonal ---- */

/* A vector whose squared length is smaller counts as zero. The largest element of the matrix is about 1, so its square
 * still has full precision. */
#define NOTHING_SQUARE 1e-280

/* Replaces x by the vector u whose Householder reflection I - factor u u' maps the old x to a multiple of the last
 * unit vector. Returns that multiple (the last element of the reflected x; all others are 0). */
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

/* Computes product = (leading i x i block) u. Before a row is used, the rank-2 update of the previous reflection is
 * subtracted from it. */
static void multiply(ad_eigen_work *work, size_t i, const fit_passing *passing) {
  memset(passing->product, 0, i * sizeof *passing->product);
  for (size_t r = 0; r < i; r++) {
    double *row = eigen_row(work, r), along = work->kernels->pass(row, r, passing);
    row[r] -= 2 * passing->v[r] * passing->w[r];
    passing->product[r] += along + row[r] * passing->u[r];
  }
}

/* A reflection applied from both sides is the rank-2 update A - u w' - w u' with w = factor A u - (factor^2 u'A u / 2)
 * u. The update is subtracted when the next reflection reads the rows, so that each reflection reads each row once. */
static void to_three_diagonals(ad_eigen_work *work) {
  const fit_kernels *kernels = work->kernels;
  double *w = work->w, *product = work->product;
  const double *v = w; /* there is no update to subtract yet: w is all zeros */
  for (size_t i = work->n - 1;; i--) {
    double *row = eigen_row(work, i), factor;
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

/* Applies the reflection I - factor u u' to x. */
static void reflect(const fit_kernels *kernels, double *x, double factor, const double *u, size_t n) {
  if (factor != 0) kernels->add(x, -factor * kernels->dot(x, u, n), u, n);
}

/* Multiplies the rows by reflections first .. end-1 from the right, in this order; each row is finished before the next
 * one begins. */
static void reflect_rows(ad_eigen_work *work, const double *vectors, size_t first, size_t end) {
  for (size_t r = 0; r < end; r++) {
    double *row = eigen_row(work, r);
    for (size_t i = first > r ? first : r + 1; i < end; i++)
      reflect(work->kernels, row, work->factors[i], vectors + (i - first) * work->n, i);
  }
}

/* Replaces the reflections, each of which is in its row's lower triangle, by their product: after step i the first i
 * rows and columns are the product of the first i reflections. The vectors are kept in the memory of `cosines`, which
 * is not used before the rotations. */
static void multiply_reflections(ad_eigen_work *work) {
  size_t n = work->n;
  for (size_t first = 0, end; first < n; first = end) {
    end = first + GROUP < n ? first + GROUP : n;
    memcpy(work->cosines, eigen_row(work, first), (end - first) * n * sizeof *work->cosines);
    memset(eigen_row(work, first), 0, (end - first) * n * sizeof(double));
    for (size_t r = first; r < end; r++) eigen_row(work, r)[r] = 1;
    reflect_rows(work, work->cosines, first, end);
  }
}

/* ---- rotations: making the tridiagonal matrix diagonal ---- */

/* Applies the kept sweeps to columns [begin, begin + width). All sweeps run at the same time from the last row to
 * the first, each one row behind the sweep before it. */
static void rotate_columns(ad_eigen_work *work, size_t begin, size_t width, size_t bottom, size_t top) {
  for (size_t wave = 1; wave < top - bottom + work->sweeps; wave++)
    for (size_t s = 0; s < work->sweeps; s++) {
      size_t k = top - wave + s; /* wraps around below 0; no sweep has such a row */
      if (k < work->low[s] || k >= work->high[s]) continue;
      double *row = eigen_row(work, k) + begin;
      work->kernels->rotate(row + work->n, row, work->cosines[s * work->n + k], work->sines[s * work->n + k], width);
    }
}

/* Applies the kept sweeps to all columns, WIDTH at a time. */
static void rotate_rows(ad_eigen_work *work) {
  size_t bottom = work->n, top = 0, n = work->n;
  for (size_t s = 0; s < work->sweeps; s++) {
    if (work->low[s] < bottom) bottom = work->low[s];
    if (work->high[s] > top) top = work->high[s];
  }
  for (size_t begin = 0; begin < n && work->sweeps; begin += WIDTH)
    rotate_columns(work, begin, n - begin < WIDTH ? n - begin : WIDTH, bottom, top);
  work->sweeps = 0;
}

/* Returns the eigenvalue of the 2 x 2 block at `diagonal` that is nearer to the block's first element (Wilkinson's
 * shift). */
static double find_shift(const double *diagonal, double beside) {
  double half = (diagonal[1] - diagonal[0]) / 2;
  return diagonal[0] - beside * (beside / (half + copysign(hypot(half, beside), half)));
}

/* Makes one implicit QL step from row `high` to row `low`. `bulge` is the element that a rotation leaves outside the
 * three diagonals and that the next rotation removes. */
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
  if (work->sweeps == SWEEPS) rotate_rows(work);
}

/* Returns 1 if off-diagonal element k is negligible compared with its neighbours on the diagonal, or with the whole
 * matrix, whose largest element was about 1. */
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
      return ad_fail(AD_NUMBER,
                     "eigenvalue %zu of %zu was not found within %d steps per eigenvalue, so the addend counts cannot "
                     "be fitted and the dump cannot be judged",
                     low + 1, n, SWEEPS_A_VALUE);
    sweep(work, low, high);
  }
  rotate_rows(work);
  return AD_OK;
}

/* ---- finding and sorting the eigenvectors ---- */

static void swap_rows(double *x, double *y, size_t n) {
  for (size_t i = 0; i < n; i++) {
    double was = x[i];
    x[i] = y[i];
    y[i] = was;
  }
}

/* Sorts the eigenvalues in ascending order, together with their vectors (selection sort: n swaps of rows). */
static void sort(ad_eigen_work *work) {
  for (size_t i = 0; i + 1 < work->n; i++) {
    size_t least = i;
    for (size_t k = i + 1; k < work->n; k++)
      if (work->diagonal[k] < work->diagonal[least]) least = k;
    if (least == i) continue;
    swap_rows(work->diagonal + i, work->diagonal + least, 1);
    swap_rows(eigen_row(work, i), eigen_row(work, least), work->n);
  }
}

static ad_status find_vectors(ad_eigen_work *work) {
  to_three_diagonals(work);
  multiply_reflections(work);
  AD_TRY(to_one_diagonal(work));
  sort(work);
  return AD_OK;
}

/* Sets *out to the exponent of two of the largest element; 0 for a zero matrix. Returns 0 if an element is not
 * finite. */
static int find_exponent(const double *matrix, size_t n, int *out) {
  double most = 0;
  for (size_t i = 0; i < n * n; i++) {
    if (!isfinite(matrix[i])) return 0;
    most = fmax(most, fabs(matrix[i]));
  }
  frexp(most, out);
  return 1;
}

static void fill_with(double *values, size_t n, double value) {
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
    fill_with(matrix, n * n, NAN);
    fill_with(values, n, NAN);
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
