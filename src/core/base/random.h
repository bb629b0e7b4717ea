/* Counter-based random numbers (Philox4x32-10 of Random123): the number depends on (seed, stream, index) alone, never
 * on who draws it or in which order, so every topology draws the same ones. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H
#include <stdint.h>
#include "base/internal.h"

AD_INTERNAL uint64_t ad_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Any of the n numbers 0 .. n-1 with equal chance, up to 2^-64: floor(bits * n / 2^64). */
AD_INTERNAL int64_t ad_random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n);
AD_INTERNAL double ad_random_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0,1), 53 bits */
AD_INTERNAL double ad_random_normal(uint64_t seed, uint64_t stream,
                                    uint64_t index);     /* mean 0, variance 1; Box-Muller */
AD_INTERNAL uint64_t ad_random_stream(const char *name); /* a stream number from a name */

#endif
