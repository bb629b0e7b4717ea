/* The loops of the fit over plain memory, once per instruction set. Every variant gives the same bits: what is summed
 * is summed in eight lanes and a rest, whatever the registers hold. */
#ifndef DIFF_FIT_KERNEL_H
#define DIFF_FIT_KERNEL_H
#include <stddef.h>

/* What a row of a symmetric matrix passes when eigen.c reflects the matrix; all vectors have the matrix's rows. */
typedef struct fit_passing {
  const double *v, *w; /* v w' + w v' is taken away from the matrix */
  const double *u;     /* which is then multiplied with this */
  double *product;     /* what rows after an element's own add to the matrix times u */
} fit_passing;

enum { AD_FIT_COLUMNS = 4 };

typedef struct fit_kernels {
  /* out[i + j*n] += column i . column j for i <= j: the upper triangle of n x n. A column is `rows` elements in a row,
   * the next one begins `stride` elements later. */
  void (*gram)(const double *columns, size_t stride, size_t n, size_t rows, double *out);
  double (*dot)(const double *x, const double *y, size_t n);
  /* y += factor * x */
  void (*add)(double *y, double factor, const double *x, size_t n);
  /* y += factor * x and sizes += |factor * x| */
  void (*add_sized)(double *y, double *sizes, double factor, const double *x, size_t n);
  /* The same of `count` columns of floats one after the other, at most AD_FIT_COLUMNS: y += factors[k] * x[k]. */
  void (*add_sized_floats)(double *y, double *sizes, const double *factors, const float *const *x, size_t count,
                           size_t n);
  /* x = cosine * x + sine * y and y = cosine * y - sine * x */
  void (*turn)(double *x, double *y, double cosine, double sine, size_t n);
  /* Elements 0..i-1 of row i: row -= v[i]*w + w[i]*v, then product += u[i]*row; returns row . u */
  double (*pass)(double *row, size_t i, const fit_passing *passing);
} fit_kernels;

extern const fit_kernels ad_fit_plain, ad_fit_avx2, ad_fit_avx512;
const fit_kernels *ad_fit_kernels(void); /* of the variant that kernels/kernels.h says is in use */

#endif
