/* Sums against whole gradients from elsewhere: another run's, or one process's. */
#ifndef DIFF_REFERENCE_H
#define DIFF_REFERENCE_H
#include "check/proof.h"
#include "diff/part.h"

typedef struct ad_compared {
  int there; /* 0: the reference has not this parameter */
  int holds;
  double ratio, max_rel_err, bound; /* of the largest element; ratio NaN: the reference is zero */
  uint32_t axes;                    /* of the cause */
  ad_cause cause;                   /* in the words of the proof */
} ad_compared;

/* `reference`: a dump whose sums, or whose file of whole gradients, are compared with. */
ad_status ad_reference_compare(const ad_parts *parts, const ad_dump *reference, ad_compared *out) AD_CHECKED;

#endif
