/* The share of one parameter in the global gradient norm. */
#ifndef DIFF_NORM_TERM_H
#define DIFF_NORM_TERM_H
#include "read/part.h"

/* One parameter's share in the squared norm. */
typedef struct ad_norm_term {
  double square;       /* sum of squares, with every distinct element once; if sampled, scaled up to all elements */
  double variance;     /* variance of `square`, if `square` is estimated from a sample */
  uint32_t replicated; /* bit set of the axes along which ranks have replicas */
} ad_norm_term;

/* Computes a parameter's share from the ranks' sums. */
void ad_norm_measure(const ad_parts *parts, ad_norm_term *out);

#endif
