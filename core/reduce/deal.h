/* Decides which rank computes which leaf of the batch in which round. A leaf is a part of the global batch whose
 * gradient is computed by itself; leaves are summed by the aligned tree (kernels/nodes.h). Leaves are assigned in the
 * order of summation, so that the ranges of leaves of a collective's members follow one another. */
#ifndef REDUCE_DEAL_H
#define REDUCE_DEAL_H
#include "addend/reduce.h"
#include "base/internal.h"
#include "kernels/nodes.h"

/* The leaves and rounds of a step. In each round every data-parallel position (replica, shard) computes at most one
 * leaf. */
typedef struct ad_leaf_deal {
  int64_t leaves;
  int64_t replicas, shards; /* sizes of dp_replicate and dp_shard */
  int64_t rounds;
  const ad_sync *sync; /* [rounds]: how far each round's gradients are reduced; the last is AD_SYNC_ALL; borrowed */
  int scatters;        /* 1: AD_SYNC_SHARD and AD_SYNC_ALL reduce-scatter over the shards; 0: only AD_SYNC_ALL sends */
} ad_leaf_deal;

/* A round sends if its gradients are summed by collectives (ad_leaf_round_sends). A unit is a run of rounds that ends
 * with a round that sends: the gradients of its rounds are sent together. A segment is a run of units that ends with a
 * round with AD_SYNC_ALL.
 *
 * The leaves are divided among segments, a segment's leaves among replicas, a replica's among units, a unit's among
 * shards, and a shard's among rounds, always in ascending order. Segments and units have shares in proportion to their
 * numbers of rounds; replicas, shards and rounds have equal shares. Boundaries are rounded down.
 *
 * ad_leaf_of returns the leaf that a position computes in a round, or -1 if it computes none. The other functions
 * return a range of leaves: ad_leaves_of_position those of one position in the unit that contains `round`;
 * ad_leaves_of_unit those of all shards of a replica in this unit; ad_leaves_of_replica those of a replica in the
 * segment that contains `round`; ad_leaves_of_segment those of all ranks in this segment. */
AD_INTERNAL int64_t ad_leaf_of(const ad_leaf_deal *deal, int64_t replica, int64_t shard, int64_t round);
ad_span ad_leaves_of_position(const ad_leaf_deal *deal, int64_t replica, int64_t shard, int64_t round);
ad_span ad_leaves_of_unit(const ad_leaf_deal *deal, int64_t replica, int64_t round);
ad_span ad_leaves_of_replica(const ad_leaf_deal *deal, int64_t replica, int64_t round);
ad_span ad_leaves_of_segment(const ad_leaf_deal *deal, int64_t round);
/* The rounds of the segment and of the unit that contain a round. ad_leaf_rounds_of walks over rounds to find them; with
 * them ad_leaves_in_rounds returns in a few steps what ad_leaves_of_position does. */
typedef struct ad_leaf_rounds {
  ad_span segment, unit;
} ad_leaf_rounds;
ad_leaf_rounds ad_leaf_rounds_of(const ad_leaf_deal *deal, int64_t round);
ad_span ad_leaves_in_rounds(const ad_leaf_deal *deal, ad_leaf_rounds rounds, int64_t replica, int64_t shard);
/* Returns 1 if the round's gradients are sent, so that a unit ends with this round; else 0. */
int ad_leaf_round_sends(const ad_leaf_deal *deal, int64_t round);

#endif
