/* Permutations of the numbers below n, computed one number at a time. */
#ifndef DATA_PERMUTATION_H
#define DATA_PERMUTATION_H
#include <stdint.h>

/* The place of number i of [0, n) under the permutation that belongs to the key. n is at least 1 and at most 2^62. */
int64_t ad_permuted(uint64_t key, int64_t n, int64_t i);

#endif
