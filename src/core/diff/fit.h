/* Least squares: how often each addend was counted in a sum, and how well that is known. */
#ifndef DIFF_FIT_H
#define DIFF_FIT_H
#include "diff/part.h"

/* Products of the addends of some members, over all elements of some parts. */
typedef struct ad_products {
  size_t n;          /* addends */
  double *gram;      /* n x n */
  double *with_sum;  /* n: of each addend with the sum over the expected factor */
  double sum_square; /* of that sum */
  double *rounded;   /* n: variances that rounding leaves in the products with the sum */
  size_t rows;       /* elements */
} ad_products;
ad_status ad_products_create(const ad_parts *parts, const ad_part *const *list, size_t count,
                             ad_products *out) AD_CHECKED;
/* From the upper triangle of the (n+1) x (n+1) products of n addends and, last, their sum, which come of `rows`
 * elements and are taken as they are, without rounding. */
ad_status ad_products_from(const double *all, size_t n, size_t rows, ad_products *out) AD_CHECKED;
size_t ad_products_zeros(const ad_products *products); /* addends that are zero */
void ad_products_destroy(ad_products *products);
/* out = gram * counts */
void ad_products_multiply(const ad_products *products, const double *counts, double *out);
/* Square of the length of sum - (counts[0] * addend 0 + ...), from gram * counts; not below 0. */
double ad_products_distance(const ad_products *products, const double *counts, const double *multiplied);

typedef struct ad_fit {
  double *counts, *errors; /* n; an infinite error: of this one only sums with others are known */
  double residual;         /* root mean square over the sum's */
  size_t rank;             /* n: all can be told apart */
} ad_fit;
/* The counts next to `prior` among those that fit best. */
ad_status ad_fit_create(const ad_products *products, const double *prior, ad_fit *out) AD_CHECKED;
void ad_fit_destroy(ad_fit *fit);

enum { AD_FIT_MAX = 4096 }; /* addends; more take too long */

#endif
