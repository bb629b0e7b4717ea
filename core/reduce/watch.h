/* Watches the sums that a reducer with leaves computes: the gradients of each leaf, the sums that this rank adds by
 * itself, and the results of collectives on this rank. For the check that compares these sums bit for bit with those of
 * another run. */
#ifndef REDUCE_WATCH_H
#define REDUCE_WATCH_H
#include "addend/array.h"
#include "base/injection.h"
#include "kernels/nodes.h"

/* This rank's part of the sum of one parameter's gradients over the leaves of one node: the full gradient if this rank
 * computed the leaves, its shard after a reduce_scatter. */
typedef struct ad_watched_sum {
  size_t param;  // index of the parameter in its reducer
  ad_node node;  // the leaves that were summed; if the sum is wrong, this may be no node of the tree
  // the axes of the collective that computed the sum; 0: this rank computed it, as a leaf or as the sum of two nodes
  ad_axes over;
  ad_axes beyond;   // the axes that are not data-parallel over which collectives have summed the value, too
  ad_array values;  // borrowed; valid only during the call of `visit`
} ad_watched_sum;

typedef struct ad_sum_watch {
  void (*visit)(void *context, const ad_watched_sum *sum);
  void *context;
  // the mutations that were installed before the watch; the watch calls them, so that they act as without it
  ad_injection before[2];
} ad_sum_watch;

/* Calls watch->visit for each sum, until the injection points are cleared; the watch is borrowed until then. After a
 * collective, first each of its results is visited, then each sum that this rank makes of them. `visit` sees a leaf
 * after the mutation at AD_INJECT_LEAF has acted, a collective's result after that at AD_INJECT_REDUCED, and every sum
 * before that at AD_INJECT_NODE. */
AD_INTERNAL void ad_sums_watch(ad_sum_watch *watch);

#endif
