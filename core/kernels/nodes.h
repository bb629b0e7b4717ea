/* The aligned tree over the leaves of a batch (law 10 where leaves are used). A node is a set of leaves that are summed
 * together: the leaves i 2^k to (i + 1) 2^k - 1, cut off at the last leaf. If only one half of a node has leaves, the
 * node is that half. Which leaves are summed together, and in which order, depends only on how many leaves there are,
 * never on the ranks that computed them. */
#ifndef KERNELS_NODES_H
#define KERNELS_NODES_H
#include <stddef.h>
#include <stdint.h>
#include "base/internal.h"

/* The leaves [first, first + count), which are a node of the tree. */
typedef struct ad_node {
  int64_t first, count;
} ad_node;

/* The most nodes that a range of leaves consists of: two of each size. */
enum { AD_NODES_MAX = 126 };

/* Returns how many leaves the lower child of a node of `count` >= 2 leaves has: the largest power of two below
 * `count`. */
static inline size_t ad_node_lower(size_t count) {
  return (size_t)1 << (8 * (int)sizeof(unsigned long long) - 1 - __builtin_clzll((unsigned long long)(count - 1)));
}

/* Writes the fewest nodes that together are the leaves [first, first + count) of a tree over `leaves` leaves, in
 * ascending order, and returns their number. `out` has room for AD_NODES_MAX nodes. */
AD_INTERNAL size_t ad_nodes_of(int64_t first, int64_t count, int64_t leaves, ad_node *out);
/* Returns 1 if `lower` and `upper` are the two halves of one node; only such sums may be added. */
int ad_nodes_are_siblings(ad_node lower, ad_node upper, int64_t leaves);
/* Member i of a group has the leaves [starts[i], starts[i + 1]). Returns 1 if each member's leaves are one node, all
 * members' leaves together are one node, and summing the members by the aligned tree is the same as summing them by the
 * tree of tree.h over their indices. Collectives without leaves then give the same bits. */
int ad_nodes_follow_members(const int64_t *starts, size_t members, int64_t leaves);

#endif
