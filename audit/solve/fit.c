/* Least squares by the addends' Gram matrix. If all addends are linearly independent, a Cholesky factor and its inverse
 * suffice. Otherwise the matrix is decomposed into eigenvectors; an eigenvector with a negligible eigenvalue is a
 * combination of counts that no element determines. */
#include "solve/fit.h"
#include "solve/combination.h"

#include <math.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "solve/eigen.h"
#include "solve/fit_kernel.h"

/* ---- the Gram matrix and the other products ---- */

/* Adds to out->rounded, for each addend, the variance that rounding of the addends causes in its product with the
 * sum. The variance is summed over elements: if an addend has few large elements, their errors do not average out. */
static void add_rounded(const double *columns, size_t stride, size_t rows, double share, double *squares,
                        ad_products *out) {
  for (size_t i = 0; i < rows; i++) squares[i] = 0;
  for (size_t c = 0; c < out->n; c++)
    for (size_t i = 0; i < rows; i++) squares[i] += columns[i + c * stride] * columns[i + c * stride];
  for (size_t c = 0; c < out->n; c++)
    for (size_t i = 0; i < rows; i++)
      out->rounded[c] += share * share * columns[i + c * stride] * columns[i + c * stride] * squares[i];
}

/* Adds the products of one part, whose addends and sum are read `stride` elements at a time. */
static void add_part(const ad_parts *parts, const ad_part *part, size_t stride, double *columns, double *products,
                     ad_products *out) {
  const ad_members *members = ad_part_members(parts, part);
  size_t n = out->n;
  double *sum = columns + n * stride, share = ad_rounding_of(parts, part).reduce;
  for (size_t begin = 0; begin < part->count; begin += stride) {
    size_t end = begin + stride < part->count ? begin + stride : part->count, rows = end - begin;
    for (size_t c = 0; c < n; c++)
      ad_part_read(parts, part, &members->columns[c].piece, begin, end, columns + c * stride);
    ad_part_read_sum(parts, part, begin, end, sum);
    for (size_t i = 0; i < rows; i++) sum[i] /= parts->param->expect;
    ad_fit_kernels()->gram(columns, stride, n + 1, rows, products);
    add_rounded(columns, stride, rows, share, sum, out);
  }
}

/* Copies the products from the upper triangle of `all`, (n+1) x (n+1), whose last column belongs to the sum. */
static void take_products(const double *all, ad_products *out) {
  size_t n = out->n;
  for (size_t j = 0; j < n; j++) {
    for (size_t i = 0; i <= j; i++) out->gram[i + j * n] = out->gram[j + i * n] = all[i + j * (n + 1)];
    out->with_sum[j] = all[j + n * (n + 1)];
  }
  out->sum_square = all[n + n * (n + 1)];
}

static ad_status new_products(size_t n, ad_products *out) {
  *out = (ad_products){.n = n};
  ad_status status = ad_new(n * n, &out->gram);
  if (!status) status = ad_new(n, &out->with_sum);
  if (!status) status = ad_new(n, &out->rounded);
  if (status) ad_products_destroy(out);
  return status;
}

ad_status ad_products_from(const double *all, size_t n, size_t rows, ad_products *out) {
  AD_TRY(new_products(n, out));
  take_products(all, out);
  out->rows = rows;
  return AD_OK;
}

/* Returns how many elements to read at a time: no more than the largest part has, since shards may be far smaller than
 * AD_ROWS. */
static size_t rows_at_once(const ad_part *const *list, size_t count) {
  size_t most = 1;
  for (size_t i = 0; i < count; i++)
    if (list[i]->count > most) most = list[i]->count;
  return most < AD_ROWS ? most : AD_ROWS;
}

/* Computes the products over all parts of `list`. */
static ad_status gather(const ad_parts *parts, const ad_part *const *list, size_t count, ad_products *out) {
  size_t n = out->n, stride = rows_at_once(list, count);
  double *columns, *all;
  AD_TRY(ad_new((n + 1) * stride, &columns));
  ad_status status = ad_new((n + 1) * (n + 1), &all);
  if (!status) {
    for (size_t i = 0; i < count; i++) {
      add_part(parts, list[i], stride, columns, all, out);
      out->rows += list[i]->count;
    }
    take_products(all, out);
    ad_release(all);
  }
  ad_release(columns);
  return status;
}

ad_status ad_products_create(const ad_parts *parts, const ad_part *const *list, size_t count, ad_products *out) {
  ad_products products;
  AD_TRY(new_products(ad_part_members(parts, list[0])->count, &products));
  ad_status status = gather(parts, list, count, &products);
  if (status) {
    ad_products_destroy(&products);
    return status;
  }
  *out = products;
  return AD_OK;
}

size_t ad_products_zeros(const ad_products *products) {
  size_t zeros = 0;
  for (size_t j = 0; j < products->n; j++) zeros += products->gram[j + j * products->n] == 0;
  return zeros;
}

void ad_products_destroy(ad_products *products) {
  ad_release(products->gram);
  ad_release(products->with_sum);
  ad_release(products->rounded);
}

void ad_products_multiply(const ad_products *products, const double *counts, double *out) {
  size_t n = products->n;
  memset(out, 0, n * sizeof *out);
  for (size_t j = 0; j < n; j++)
    for (size_t i = 0; i < n && counts[j] != 0; i++) out[i] += products->gram[i + j * n] * counts[j];
}

double ad_products_distance(const ad_products *products, const double *counts, const double *multiplied) {
  double distance = products->sum_square;
  for (size_t j = 0; j < products->n; j++) distance += counts[j] * (multiplied[j] - 2 * products->with_sum[j]);
  return fmax(distance, 0);
}

/* ---- the fit by eigenvectors ---- */

/* The eigenvectors of the Gram matrix of the addends after each addend is scaled to length 1. */
typedef struct ad_eigen {
  double *vectors, *values; /* n x n and n */
  double *lengths;          /* n: lengths of the addends; 1 for an addend that is zero */
  /* n: the right-hand side of the fit; later scratch memory */
  double *target;
  size_t n;
} ad_eigen;

static void eigen_destroy(ad_eigen *eigen) {
  ad_release(eigen->vectors);
  ad_release(eigen->values);
  ad_release(eigen->lengths);
  ad_release(eigen->target);
}

static ad_status eigen_create(const ad_products *products, ad_eigen *eigen) {
  size_t n = eigen->n = products->n;
  AD_TRY(ad_new(n * n, &eigen->vectors));
  AD_TRY(ad_new(n, &eigen->values));
  AD_TRY(ad_new(n, &eigen->lengths));
  AD_TRY(ad_new(n, &eigen->target));
  for (size_t j = 0; j < n; j++) {
    double square = products->gram[j + j * n];
    eigen->lengths[j] = square > 0 ? sqrt(square) : 1;
  }
  for (size_t j = 0; j < n; j++)
    for (size_t i = 0; i < n; i++)
      eigen->vectors[i + j * n] = products->gram[i + j * n] / (eigen->lengths[i] * eigen->lengths[j]);
  ad_status status = ad_eigen_solve(eigen->vectors, n, eigen->values);
  return status == AD_NUMBER
             ? ad_fail_in(status, "addend cannot find how often each of the dump's %zu addends was counted", n)
             : status;
}

/* A smaller eigenvalue counts as 0. The eigenvalues of orthogonal unit addends are 1, and rounding errors are far
 * smaller than this number. */
#define NOTHING 1e-9

/* Sets fit->counts to that best fit which is nearest to `prior`, and fit->rank to the number of usable eigenvalues. */
static void solve(const ad_products *products, const ad_eigen *eigen, const double *prior, ad_fit *fit) {
  size_t n = eigen->n;
  ad_products_multiply(products, prior, eigen->target);
  for (size_t j = 0; j < n; j++) {
    eigen->target[j] = (products->with_sum[j] - eigen->target[j]) / eigen->lengths[j];
    fit->counts[j] = prior[j];
  }
  fit->rank = 0;
  for (size_t k = 0; k < n; k++) {
    const double *vector = eigen->vectors + k * n;
    double along = 0;
    if (eigen->values[k] <= NOTHING) continue;
    for (size_t j = 0; j < n; j++) along += vector[j] * eigen->target[j];
    for (size_t j = 0; j < n; j++) fit->counts[j] += vector[j] * along / eigen->values[k] / eigen->lengths[j];
    fit->rank++;
  }
}

/* Sets fit->residual and fit->errors. The standard error of a count is infinite if an eigenvector with a negligible
 * eigenvalue has a share in it. */
static void find_errors(const ad_products *products, const ad_eigen *eigen, ad_fit *fit) {
  size_t n = eigen->n, free = products->rows > fit->rank ? products->rows - fit->rank : 1;
  ad_products_multiply(products, fit->counts, eigen->target);
  double square = ad_products_distance(products, fit->counts, eigen->target), deviation = sqrt(square / (double)free);
  fit->residual = products->sum_square > 0 ? sqrt(square / products->sum_square) : 0;
  for (size_t j = 0; j < n; j++) {
    double variance = 0, unknown = 0;
    for (size_t k = 0; k < n; k++) {
      double share = eigen->vectors[j + k * n] * eigen->vectors[j + k * n];
      if (eigen->values[k] <= NOTHING)
        unknown += share;
      else
        variance += share / eigen->values[k];
    }
    double rounded = sqrt(products->rounded[j]) / eigen->lengths[j];
    fit->errors[j] = unknown > 1e-6 ? INFINITY : fmax(deviation, rounded) * sqrt(variance) / eigen->lengths[j];
  }
}

static ad_status fit_by_vectors(const ad_products *products, const double *prior, ad_fit *fit) {
  ad_eigen eigen = {0};
  ad_status status = eigen_create(products, &eigen);
  if (!status) {
    solve(products, &eigen, prior, fit);
    find_errors(products, &eigen, fit);
  }
  eigen_destroy(&eigen);
  return status;
}

/* ---- the fit by Cholesky, if all addends are linearly independent ---- */

/* The trace of the inverse is at least 1 / (smallest eigenvalue). So if the trace is below this limit, no eigenvalue is
 * negligible. */
#define APART (1e-2 / NOTHING)

/* rows of L that are computed together, so that each earlier row is read from memory once for all of them */
enum { AT_ONCE = 4 };

/* The Cholesky factor L of the Gram matrix L L' of the addends scaled to length 1, then its inverse. */
typedef struct ad_inverse {
  double *rows;    /* n x n: lower triangles, first of L, then of its inverse */
  double *lengths; /* n: lengths of the addends; 1 for an addend that is zero */
  /* n each. target: the right-hand side, later scratch memory; variances: diagonal of the Gram matrix's inverse */
  double *target, *variances;
  double *left; /* AT_ONCE x n, scratch memory of the function `invert` */
  size_t n;
} ad_inverse;

static ad_status inverse_create(const ad_products *products, ad_inverse *inverse) {
  size_t n = inverse->n = products->n;
  AD_TRY(ad_new(n * n, &inverse->rows));
  AD_TRY(ad_new((3 + AT_ONCE) * n, &inverse->lengths));
  inverse->target = inverse->lengths + n;
  inverse->variances = inverse->target + n;
  inverse->left = inverse->variances + n;
  for (size_t j = 0; j < n; j++) {
    double square = products->gram[j + j * n];
    inverse->lengths[j] = square > 0 ? sqrt(square) : 1;
  }
  for (size_t j = 0; j < n; j++) {
    double *row = inverse->rows + j * n;
    for (size_t i = 0; i < j; i++) row[i] = products->gram[i + j * n] / (inverse->lengths[i] * inverse->lengths[j]);
    row[j] = 1;
  }
  return AD_OK;
}

static void inverse_destroy(ad_inverse *inverse) {
  ad_release(inverse->rows);
  ad_release(inverse->lengths);
}

static size_t end_of_block(size_t begin, size_t n) { return begin + AT_ONCE < n ? begin + AT_ONCE : n; }

/* Computes element j of rows [begin, end) of the Cholesky factor L, given row j of L. */
static void factorize_by(ad_inverse *inverse, size_t j, size_t begin, size_t end) {
  const fit_kernels *kernels = ad_fit_kernels();
  const double *other = inverse->rows + j * inverse->n;
  for (size_t i = begin; i < end; i++) {
    double *row = inverse->rows + i * inverse->n;
    row[j] = (row[j] - kernels->dot(row, other, j)) / other[j];
  }
}

/* Replaces the rows of the Gram matrix by those of L. Returns 0 if an addend is nearly a combination of other
 * addends. */
static int factorize(ad_inverse *inverse) {
  size_t n = inverse->n;
  for (size_t begin = 0, end; begin < n; begin = end) {
    end = end_of_block(begin, n);
    for (size_t j = 0; j < begin; j++) factorize_by(inverse, j, begin, end);
    for (size_t i = begin; i < end; i++) {
      double *row = inverse->rows + i * n, pivot = row[i] - ad_fit_kernels()->dot(row, row, i);
      if (!(pivot > NOTHING)) return 0;
      row[i] = sqrt(pivot);
      factorize_by(inverse, i, i + 1, end);
    }
  }
  return 1;
}

/* Subtracts the contribution of row k of L's inverse from the right-hand sides `left` of rows [begin, end). */
static void invert_by(const ad_inverse *inverse, double *left, size_t k, size_t first, size_t begin, size_t end) {
  const fit_kernels *kernels = ad_fit_kernels();
  size_t n = inverse->n;
  for (size_t i = begin; i < end; i++)
    kernels->add(left + (i - first) * n, -inverse->rows[k + i * n], inverse->rows + k * n, k + 1);
}

/* Replaces L by its inverse, row by row, and sums the squares of its columns, which are the diagonal of the Gram
 * matrix's inverse. Returns the trace of that inverse. */
static double invert(ad_inverse *inverse) {
  size_t n = inverse->n;
  double all = 0;
  for (size_t begin = 0, end; begin < n; begin = end) {
    end = end_of_block(begin, n);
    memset(inverse->left, 0, AT_ONCE * n * sizeof *inverse->left);
    for (size_t k = 0; k < begin; k++) invert_by(inverse, inverse->left, k, begin, begin, end);
    for (size_t i = begin; i < end; i++) {
      double *row = inverse->rows + i * n, *left = inverse->left + (i - begin) * n, pivot = row[i];
      for (size_t k = 0; k < i; k++) row[k] = left[k] / pivot;
      row[i] = 1 / pivot;
      for (size_t k = 0; k <= i; k++) inverse->variances[k] += row[k] * row[k];
      invert_by(inverse, inverse->left, i, begin, i + 1, end);
    }
  }
  for (size_t k = 0; k < n; k++) all += inverse->variances[k];
  return all;
}

/* Sets fit->counts and fit->rank, by means of the inverse of L. */
static void solve_apart(const ad_products *products, ad_inverse *inverse, const double *prior, ad_fit *fit) {
  const fit_kernels *kernels = ad_fit_kernels();
  size_t n = inverse->n;
  ad_products_multiply(products, prior, inverse->target);
  for (size_t j = 0; j < n; j++) {
    inverse->target[j] = (products->with_sum[j] - inverse->target[j]) / inverse->lengths[j];
    fit->counts[j] = 0;
  }
  for (size_t i = 0; i < n; i++) {
    const double *row = inverse->rows + i * n;
    kernels->add(fit->counts, kernels->dot(row, inverse->target, i + 1), row, i + 1);
  }
  for (size_t j = 0; j < n; j++) fit->counts[j] = prior[j] + fit->counts[j] / inverse->lengths[j];
  fit->rank = n - ad_products_zeros(products);
}

/* Sets fit->residual and fit->errors, by means of the inverse of L. */
static void find_errors_apart(const ad_products *products, ad_inverse *inverse, ad_fit *fit) {
  size_t n = inverse->n, free = products->rows > fit->rank ? products->rows - fit->rank : 1;
  ad_products_multiply(products, fit->counts, inverse->target);
  double square = ad_products_distance(products, fit->counts, inverse->target);
  double deviation = sqrt(square / (double)free);
  fit->residual = products->sum_square > 0 ? sqrt(square / products->sum_square) : 0;
  for (size_t j = 0; j < n; j++) {
    double rounded = sqrt(products->rounded[j]) / inverse->lengths[j];
    double error = fmax(deviation, rounded) * sqrt(inverse->variances[j]) / inverse->lengths[j];
    fit->errors[j] = products->gram[j + j * n] > 0 ? error : INFINITY;
  }
}

/* Fits by Cholesky. Sets *done to 0 if addends may be too nearly dependent for that. */
static ad_status fit_apart(const ad_products *products, const double *prior, ad_fit *fit, int *done) {
  ad_inverse inverse = {0};
  ad_status status = inverse_create(products, &inverse);
  *done = !status && factorize(&inverse) && invert(&inverse) < APART;
  if (*done) {
    solve_apart(products, &inverse, prior, fit);
    find_errors_apart(products, &inverse, fit);
  }
  inverse_destroy(&inverse);
  return status;
}

ad_status ad_fit_create(const ad_products *products, const double *prior, ad_fit *out) {
  ad_fit fit = {0};
  int done = 0;
  ad_status status = ad_new(products->n, &fit.counts);
  if (!status) status = ad_new(products->n, &fit.errors);
  if (!status) status = fit_apart(products, prior, &fit, &done);
  if (!status && !done) status = fit_by_vectors(products, prior, &fit);
  if (status)
    ad_fit_destroy(&fit);
  else
    *out = fit;
  return status;
}

void ad_fit_destroy(ad_fit *fit) {
  ad_release(fit->counts);
  ad_release(fit->errors);
}
