/* The order in which the addends of a group are summed: one fixed tree over its indices, which depends on nothing but
 * how many there are (law 10). Whoever sums, wherever, asks here. */
#ifndef KERNELS_TREE_H
#define KERNELS_TREE_H
#include <stddef.h>

/* The tree over `count` >= 2 indices from `first` on is the sum of two: over the lower half of the indices, and over
 * the upper half. Returns how many the lower half has. Of an odd count the cut is at whichever of the two indices
 * beside the middle is even: ranks of a node come in pairs more often than not, and a pair that begins at an even index
 * is then not torn apart here. */
static inline size_t ad_tree_lower(size_t first, size_t count) {
  size_t half = count / 2;
  return half + (count & (first + half) & 1);
}

#endif
