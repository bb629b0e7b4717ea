/* Compares the global gradient norm that a job reported with the norm of its sums. */
#ifndef DIFF_NORM_H
#define DIFF_NORM_H
#include <jansson.h>
#include "read/part.h"

/* One parameter's share in the squared norm. */
typedef struct ad_norm_term {
  double square;       /* sum of squares, with every distinct element once; if sampled, scaled up to all elements */
  double variance;     /* variance of `square`, if `square` is estimated from a sample */
  uint32_t replicated; /* bit set of the axes along which ranks have replicas */
} ad_norm_term;

/* Computes a parameter's share from the ranks' sums. */
ad_status ad_norm_measure(const ad_parts *parts, ad_norm_term *out) AD_CHECKED;
/* Returns the document's key "norm"; null if no file reports a norm. `terms` has one element for each parameter. *holds
 * is 1 if the reported norm is right, or none is reported. */
json_t *ad_norm_document(const ad_dump *dump, const ad_norm_term *terms, int *holds);

#endif
