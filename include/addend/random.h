/* Random numbers without a state (Philox4x32-10, Salmon et al. 2011): a number depends on (seed, stream, index) alone,
 * never on who draws it or in which order, so every topology draws the same ones. data.h says which words of Philox's
 * are which. */
#ifndef ADDEND_RANDOM_H
#define ADDEND_RANDOM_H
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

AD_API uint64_t ad_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Any of the n numbers 0 .. n-1 with equal chance, up to 2^-64: floor(bits * n / 2^64). 0 where n is below 1. */
AD_API int64_t ad_random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n);
AD_API double ad_random_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* [0,1), 53 bits */
AD_API double ad_random_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, variance 1; Box-Muller */
AD_API uint64_t ad_random_stream(const char *name); /* the stream of what is called so: XXH64(name); NULL as "" */

#if defined(__cplusplus)
}
#endif
#endif
