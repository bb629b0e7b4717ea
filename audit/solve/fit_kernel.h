/* The loops of the fit over arrays of numbers, compiled once per instruction set. All variants give the same bits: each
 * sum is formed in eight lanes and a remainder, whatever the width of the registers. */
#ifndef DIFF_FIT_KERNEL_H
#define DIFF_FIT_KERNEL_H
#include <stddef.h>

/* The vectors that eigen.c passes to `pass` when it applies a reflection to a symmetric matrix row by row. Each
 * vector has one element per row of the matrix. */
typedef struct fit_passing {
  const double *v, *w; /* the update v w' + w v' is subtracted from the matrix */
  const double *u;     /* after the update, the matrix is multiplied by this vector */
  double *product;     /* the product of the matrix and u so far, without the elements above the diagonal */
} fit_passing;

/* add_sized_floats adds at most this many columns at a time. */
enum { AD_FIT_COLUMNS = 4 };

typedef struct fit_kernels {
  /* out[i + j*n] += column i . column j for i <= j: the upper triangle of n x n. The `rows` elements of a column are
   * contiguous; the next column begins `stride` elements after it. */
  void (*gram)(const double *columns, size_t stride, size_t n, size_t rows, double *out);
  double (*dot)(const double *x, const double *y, size_t n);
  /* y += factor * x */
  void (*add)(double *y, double factor, const double *x, size_t n);
  /* y += factor * x and sizes += |factor * x| */
  void (*add_sized)(double *y, double *sizes, double factor, const double *x, size_t n);
  /* Does the same as add_sized for `count` columns of floats, at most AD_FIT_COLUMNS, in order: y += factors[k] *
   * x[k]. */
  void (*add_sized_floats)(double *y, double *sizes, const double *factors, const float *const *x, size_t count,
                           size_t n);
  /* x = cosine * x + sine * y and y = cosine * y - sine * x */
  void (*rotate)(double *x, double *y, double cosine, double sine, size_t n);
  /* Updates elements 0..i-1 of row i: row -= v[i]*w + w[i]*v, then product += u[i]*row. Returns row . u. */
  double (*pass)(double *row, size_t i, const fit_passing *passing);
} fit_kernels;

extern const fit_kernels ad_fit_plain, ad_fit_avx2, ad_fit_avx512;
const fit_kernels *ad_fit_kernels(void); /* the variant that kernels/kernels.h chose */

#endif
