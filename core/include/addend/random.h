/* Random numbers without a state (Philox4x32-10, Salmon et al. 2011): a number depends only on (seed, stream, index),
 * never on which rank draws it or in which order, so every mesh draws the same numbers. addend/data.h defines how the
 * words of Philox are used. */
#ifndef ADDEND_RANDOM_H
#define ADDEND_RANDOM_H
#include <stdint.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* 64 random bits. */
AD_API uint64_t ad_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Returns one of the n numbers 0 .. n-1, each with the same probability up to 2^-64: floor(bits * n / 2^64). Returns 0
 * if n is below 1. */
AD_API int64_t ad_random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n);
AD_API double ad_random_uniform(uint64_t seed, uint64_t stream, uint64_t index); /* in [0,1), with 53 bits */
AD_API double ad_random_normal(uint64_t seed, uint64_t stream, uint64_t index);  /* mean 0, variance 1; Box-Muller */
AD_API uint64_t ad_random_stream(const char *name); /* the stream for a name: XXH64(name); NULL counts as "" */

#if defined(__cplusplus)
}
#endif
#endif
