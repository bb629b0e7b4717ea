/* The order in which the addends of a group are summed: a fixed tree over their indices, which depends only on the
 * number of addends (law 10). Every sum in the project uses it. */
#ifndef KERNELS_TREE_H
#define KERNELS_TREE_H
#include <stddef.h>

/* The sum over `count` >= 2 indices from `first` on is the sum over their lower half plus the sum over their upper
 * half; each half is summed in the same way. Returns how many indices the lower half has. An odd count is cut so that
 * the upper half begins at an even index: ranks of a node often come in pairs that begin at an even index, and such a
 * pair then stays in one half. */
static inline size_t ad_tree_lower(size_t first, size_t count) {
  size_t half = count / 2;
  return half + (count & (first + half) & 1);
}

#endif
