/* Compares sums with full gradients from elsewhere: another run, or one process. */
#ifndef DIFF_COMPARED_H
#define DIFF_COMPARED_H
#include "read/part.h"

/* The result of a comparison. */
typedef struct ad_compared {
  int there; /* 0: the reference does not have this parameter */
  /* 1: the largest error is at most `bound` */
  int holds;
  /* ratio: <sum,ref>/<ref,ref>, NaN if the reference is zero; max_rel_err, bound: relative to the largest element */
  double ratio, max_rel_err, bound;
  int proportional; /* 1: the sum is wrong, and it is `ratio` times the reference */
  /* [microbatches]: how often the sum counts each microbatch, relative to the reference, if such weights explain a
   * wrong sum; NULL: no weights explain it */
  double *weights;
} ad_compared;

/* Compares the parameter's sums with `reference`: the sums of another dump, or a file of full gradients.
 * ad_compared_clear clears *out. */
ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) AD_CHECKED;
void ad_compared_clear(ad_compared *compared);

#endif
