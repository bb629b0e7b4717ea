/* Which sums of leaves the ranks of a transition hand in, and which they get (train.leaves): a rank's arrays describe one
 * value, and have one for each node of its leaves. */
#ifndef CHECK_LEAF_SUMS_H
#define CHECK_LEAF_SUMS_H
#include "array/transit.h"
#include "kernels/nodes.h"

/* Writes the nodes whose sums a rank hands in, and returns their number. Without leaves, and for ranks outside the
 * transition's group, whose leaves this rank does not know, it is 1, a node of no leaves. */
size_t ad_leaf_sums_given(const ad_transit_passing *pass, int64_t rank, ad_node *out);
/* The same for the nodes whose sums each rank of the group gets. */
size_t ad_leaf_sums_taken(const ad_transit_passing *pass, ad_node *out);

#endif
