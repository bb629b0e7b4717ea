/* Tests whether a part of a dumped sum is a given combination of its addends. Every element is compared, and may have
 * as large an error as rounding allows. */
#ifndef DIFF_COMBINATION_H
#define DIFF_COMBINATION_H
#include "read/part.h"

/* How a sum is rounded: by each addition, and in the array that stores it. */
typedef struct ad_rounding {
  double reduce, sum;   /* unit roundoffs: of the dtype of the additions, and of the dtype of the array */
  double smallest;      /* the larger of the smallest positive numbers of these dtypes */
  double inside;        /* error of addends that are sums themselves, before they are rounded; in units of `reduce` */
  int64_t microbatches; /* how many times a microbatch's sum is added to the array */
} ad_rounding;
ad_rounding ad_rounding_of(const ad_parts *parts, const ad_part *part);
/* Returns the error that a sum of n addends may have, as a share of the addends' absolute sum. */
double ad_rounding_share(const ad_rounding *rounding, size_t n);
/* Returns 1 if the allowed error may be more than half of one of n equal addends: then a test of their combination
 * does not notice a missing addend. */
int ad_rounding_hides_addends(const ad_rounding *rounding, size_t n);

typedef struct ad_fitness {
  int holds;
  double residual, bound; /* of the element with the largest residual / bound, relative to the addends' absolute sum */
} ad_fitness;
/* Tests whether part = factor * (counts[0] * addend 0 + counts[1] * addend 1 + ...). There is one count for each column
 * of the part's members. */
ad_status ad_part_test(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                       const ad_rounding *rounding, ad_fitness *out) AD_CHECKED;

/* Does the same as ad_part_test for the part's first elements only. Most wrong combinations fail this cheap test. */
ad_status ad_part_test_first(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                             const ad_rounding *rounding, ad_fitness *out) AD_CHECKED;
/* Tests the counts, times the expected factor, on the part's first elements and, if these match, on all elements.
 * Meant for trying many lists of counts of which few match. */
ad_status ad_part_try(const ad_parts *parts, const ad_part *part, const double *counts, ad_fitness *out) AD_CHECKED;
/* Does the same as ad_part_test for several parts of the same members and box, each with its own error bound; out[i]
 * is the result for list[i]. Every addend is read once for all parts. */
ad_status ad_parts_test(const ad_parts *parts, const ad_part *const *list, size_t count, const double *counts,
                        double factor, ad_fitness *out) AD_CHECKED;

#endif
