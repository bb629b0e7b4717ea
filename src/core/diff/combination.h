/* Whether a part is a given combination of its addends: element by element, against what rounding allows. */
#ifndef DIFF_COMBINATION_H
#define DIFF_COMBINATION_H
#include "diff/part.h"

/* What rounds: of each addition of a sum, and of what holds it. */
typedef struct ad_rounding {
  double reduce, sum;   /* unit roundoffs */
  double smallest;      /* number above 0 of the dtypes */
  double inside;        /* what sums inside of addends may be off before they are rounded: u times this, absolute */
  int64_t microbatches; /* how often what holds the sum is added to */
} ad_rounding;
ad_rounding ad_rounding_of(const ad_parts *parts, const ad_part *part);
/* What of the addends' absolute sum a sum of n of them may be off. */
double ad_rounding_share(const ad_rounding *rounding, size_t n);

typedef struct ad_fitness {
  int holds;
  double residual, bound; /* where the one is largest against the other; both relative to the addends' absolute sum */
} ad_fitness;
/* sum = factor * (counts[0] * addend 0 + ...), over the columns of the part's members. */
ad_status ad_part_test(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                       const ad_rounding *rounding, ad_fitness *out) AD_CHECKED;

/* The same of its first elements alone: what fails here need not be read to its end. */
ad_status ad_part_test_first(const ad_parts *parts, const ad_part *part, const double *counts, double factor,
                             const ad_rounding *rounding, ad_fitness *out) AD_CHECKED;
/* The same of several parts that have the same members and the same box, each against its own bound; `out`: one for
 * each. Addends are read once. */
ad_status ad_parts_test(const ad_parts *parts, const ad_part *const *list, size_t count, const double *counts,
                        double factor, ad_fitness *out) AD_CHECKED;

#endif
