/* The order in which the addends of a group are summed: a fixed tree over the addends' indices, which depends only on
 * how many addends there are (law 10). Every sum in the project uses this tree, except sums of leaves (nodes.h). */
#ifndef KERNELS_TREE_H
#define KERNELS_TREE_H
#include <stddef.h>

/* The sum over `count` >= 2 addends from index `first` on is the sum over their lower half plus the sum over their
 * upper half; each half is summed in the same way. Returns how many addends the lower half has. If `count` is odd, the
 * upper half begins at an even index: ranks of a node often come in pairs that begin at an even rank, and each such
 * pair then stays in one half. */
static inline size_t ad_tree_lower(size_t first, size_t count) {
  size_t half = count / 2;
  return half + (count & (first + half) & 1);
}

#endif
