/* Watches the sums that a reducer with leaves forms: each leaf's own gradients, the sums that this rank adds up by
 * itself, and those that collectives leave here. For the check that compares them bit for bit with another run's. */
#ifndef REDUCE_WATCH_H
#define REDUCE_WATCH_H
#include "addend/array.h"
#include "base/injection.h"
#include "kernels/nodes.h"

/* What this rank has of the sum of one parameter's gradients over the leaves of one node: all of a gradient that it
 * computed, and its shard of what was scattered. */
typedef struct ad_watched_sum {
  size_t param;     // number of the parameter in its reducer
  ad_node node;     // the leaves; one that is no node of the tree if the sum is wrong
  ad_axes over;     // the axes of the collective that summed; 0: this rank did, or the node is a leaf that it computed
  ad_axes beyond;   // the axes, other than data-parallel ones, over which collectives have summed as well
  ad_array values;  // borrowed, for the call alone
} ad_watched_sum;

typedef struct ad_sum_watch {
  void (*visit)(void *context, const ad_watched_sum *sum);
  void *context;
  ad_injection before[2];  // the mutations that were installed before, which act as if nobody watched
} ad_sum_watch;

/* Calls watch->visit for each sum, until the injection points are cleared. The watch is borrowed until then. Of the sums
 * that a collective leaves here each is seen, and then those that this rank adds up from them. A leaf is seen after a
 * mutation at AD_INJECT_LEAF, results of collectives after one at AD_INJECT_REDUCED, all before one at
 * AD_INJECT_NODE. */
AD_INTERNAL void ad_sums_watch(ad_sum_watch *watch);

#endif
