/* Permutations of the numbers below n, computed one number at a time. */
#ifndef DATA_PERMUTATION_H
#define DATA_PERMUTATION_H
#include <stdint.h>

/* Returns the element at index i of a permutation of 0 .. n - 1 that the key determines; n is at least 1 and at most
 * 2^62. */
int64_t ad_permuted(uint64_t key, int64_t n, int64_t i);

#endif
