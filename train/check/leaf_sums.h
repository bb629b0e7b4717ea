/* Which sums of leaves each rank of a transition submits and receives, if leaves are summed (train.leaves): a rank has
 * one array for each node of the tree over leaves that its own leaves form. */
#ifndef CHECK_LEAF_SUMS_H
#define CHECK_LEAF_SUMS_H
#include "array/transit.h"
#include "kernels/nodes.h"

/* Writes the nodes whose sums `rank` submits, and returns their number. If no leaves are summed, or if `rank` is not in
 * the transition's group (its leaves are then not known here), writes one node without leaves and returns 1. */
size_t ad_leaf_sums_given(const ad_transit_passing *pass, int64_t rank, ad_node *out);
/* Writes the nodes whose sums each rank of the group receives, and returns their number; without leaves, as
 * ad_leaf_sums_given. */
size_t ad_leaf_sums_taken(const ad_transit_passing *pass, ad_node *out);

#endif
