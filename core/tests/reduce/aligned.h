/* The sum over the leaves of a batch as law 10 defines it, for tests: written from the definition, independently of
 * kernels/nodes.c. */
#ifndef TESTS_REDUCE_ALIGNED_H
#define TESTS_REDUCE_ALIGNED_H
#include <math.h>
#include "addend/dtype.h"
#include "addend/helpers.h"

/* Returns a + b, rounded to the dtype in which sums are accumulated. */
static inline double sum_of_two(ad_dtype dtype, double a, double b) {
  return dtype == AD_F64 ? a + b : (double)((float)a + (float)b);
}

/* The sum of node (k, i): leaves [i 2^k, (i + 1) 2^k), cut off at the last leaf. `value` has the value of each leaf and
 * is overwritten, once for each k, by the sums of the nodes (k, 0), (k, 1), ...: a node has the sum of its two children,
 * or of the only child that there is. */
static inline double node_sum(ad_dtype dtype, double *value, int64_t leaves, int k, int64_t i) {
  for (int64_t nodes = leaves; k > 0; k--, nodes = (nodes + 1) / 2)
    for (int64_t at = 0; 2 * at < nodes; at++)
      value[at] = 2 * at + 1 < nodes ? sum_of_two(dtype, value[2 * at], value[2 * at + 1]) : value[2 * at];
  return value[i];
}

/* The sum over all leaves, whose values are overwritten. */
static inline double aligned_sum(ad_dtype dtype, double *value, int64_t leaves) {
  int k = 0;
  while ((int64_t)1 << k < leaves) k++;
  return node_sum(dtype, value, leaves, k, 0);
}

/* Returns a random number that f32 can represent, of one of 24 magnitudes, so that sums in another order have other
 * bits. */
static inline double drawn_value(uint64_t seed, uint64_t stream, uint64_t i) {
  double size = floor(ad_random_uniform(seed + 1, stream, i) * 24) - 12;
  return (double)(float)ldexp(2 * ad_random_uniform(seed, stream, i) - 1, (int)size);
}

#endif
