/* Sums against whole gradients from elsewhere: another run's, or one process's. */
#ifndef DIFF_REFERENCE_H
#define DIFF_REFERENCE_H
#include "diff/cause.h"
#include "diff/part.h"

typedef struct ad_compared {
  int there; /* 0: the reference has not this parameter */
  int holds;
  double ratio, max_rel_err, bound; /* of the largest element; ratio NaN: the reference is zero */
  json_t *causes;                   /* documents of those that fit, in the words of the proof; NULL where it holds */
} ad_compared;

/* *out is for ad_compared_clear. `reference`: a dump whose sums, or whose file of whole gradients, are compared with.
 */
ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) AD_CHECKED;
void ad_compared_clear(ad_compared *compared);

#endif
