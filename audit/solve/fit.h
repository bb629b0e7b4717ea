/* Least squares: finds how often each addend was counted in a sum, and how accurate each count is. */
#ifndef DIFF_FIT_H
#define DIFF_FIT_H
#include "read/part.h"

/* The scalar products of one parameter's addends with each other and with the sum, over all elements of the fitted
 * parts. */
typedef struct ad_products {
  size_t n;          /* number of addends */
  double *gram;      /* n x n: products of the addends with each other */
  double *with_sum;  /* n: product of each addend with the sum divided by the expected factor */
  double sum_square; /* squared length of the divided sum */
  double *rounded;   /* n: variances of the rounding errors in `with_sum` */
  size_t rows;       /* number of elements */
} ad_products;
/* Reads the parts of the sum in `list` and their addends, and computes the products. All parts of `list` have the
 * same members. */
ad_status ad_products_create(const ad_parts *parts, const ad_part *const *list, size_t count,
                             ad_products *out) AD_CHECKED;
/* Fills *out from products that were computed elsewhere. `all` is the (n+1) x (n+1) matrix of products of n addends
 * and, last, their sum, over `rows` elements; only its upper triangle is read. Rounding errors are taken as 0. */
ad_status ad_products_from(const double *all, size_t n, size_t rows, ad_products *out) AD_CHECKED;
size_t ad_products_zeros(const ad_products *products); /* number of addends that are zero */
void ad_products_destroy(ad_products *products);
/* out = gram * counts */
void ad_products_multiply(const ad_products *products, const double *counts, double *out);
/* Returns the squared length of sum - (counts[0] * addend 0 + ...), but at least 0. `multiplied` is gram * counts. */
double ad_products_distance(const ad_products *products, const double *counts, const double *multiplied);

/* The result of a fit. */
typedef struct ad_fit {
  /* n each: counts and their standard errors. If the error of a count is infinite, only its sum with other counts is
   * known. */
  double *counts, *errors;
  double residual; /* root mean square of the sum minus the addends times counts, relative to that of the sum */
  size_t rank;     /* number of linearly independent addends */
} ad_fit;
/* Fits the counts. If several lists of counts fit equally well, takes the list nearest to `prior`. */
ad_status ad_fit_create(const ad_products *products, const double *prior, ad_fit *out) AD_CHECKED;
void ad_fit_destroy(ad_fit *fit);

enum { AD_FIT_MAX = 4096 }; /* the most addends in a fit; more take too long */

#endif
