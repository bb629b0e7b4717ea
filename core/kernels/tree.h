/* The order in which the addends of a group are summed: a fixed tree over their indices, which depends only on how many
 * there are (law 10). Every sum in the project uses it. */
#ifndef KERNELS_TREE_H
#define KERNELS_TREE_H
#include <stddef.h>

/* The sum over `count` >= 2 indices from `first` on is the sum over their lower half plus the sum over their upper
 * half, each formed in the same way. Returns how many indices the lower half has. An odd count is cut beside the middle
 * so that the upper half begins at an even index: ranks of a node often come in pairs that begin at an even index, and
 * such a pair then stays together. */
static inline size_t ad_tree_lower(size_t first, size_t count) {
  size_t half = count / 2;
  return half + (count & (first + half) & 1);
}

#endif
