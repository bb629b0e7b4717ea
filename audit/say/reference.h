/* Compares sums with full gradients from elsewhere: another run, or one process. */
#ifndef DIFF_REFERENCE_H
#define DIFF_REFERENCE_H
#include "say/cause.h"
#include "read/part.h"

/* The result of a comparison. */
typedef struct ad_compared {
  int there; /* 0: the reference does not have this parameter */
  /* 1: the largest error is at most `bound` */
  int holds;
  /* ratio: <sum,ref>/<ref,ref>, NaN if the reference is zero; max_rel_err, bound: relative to the largest element */
  double ratio, max_rel_err, bound;
  json_t *causes; /* causes that fit, as JSON documents, worded as in `addend check`; NULL: the sum is right */
} ad_compared;

/* Compares the parameter with `reference`: a dump, of which the sums or the file of full gradients are used.
 * ad_compared_clear clears *out. */
ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) AD_CHECKED;
void ad_compared_clear(ad_compared *compared);

#endif
