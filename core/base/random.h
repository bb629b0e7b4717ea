/* Random bits and integers, in addition to the numbers of addend/helpers.h. */
#ifndef BASE_RANDOM_H
#define BASE_RANDOM_H
#include "addend/helpers.h"
#include "base/internal.h"

/* Returns the 64 random bits number `index` of the stream. */
AD_INTERNAL uint64_t ad_random_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Returns one of the n numbers 0 .. n-1, each with the same probability up to 2^-64: floor(bits * n / 2^64). Returns 0
 * if n is below 1. */
AD_INTERNAL int64_t ad_random_below(uint64_t seed, uint64_t stream, uint64_t index, int64_t n);

#endif
