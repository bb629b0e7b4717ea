/* Who has which leaf of the batch. A leaf is a part of the global batch whose gradient is computed by itself; the sums
 * of leaves go by the aligned tree (kernels/nodes.h). Leaves are dealt in the order of summation, so that the members
 * of every collective have neighbouring ranges of leaves. */
#ifndef REDUCE_DEAL_H
#define REDUCE_DEAL_H
#include "addend/reduce.h"
#include "base/internal.h"
#include "kernels/nodes.h"

/* A step's rounds: in each round every data-parallel position (replica, shard) computes at most one leaf. */
typedef struct ad_leaf_deal {
  int64_t leaves;
  int64_t replicas, shards; /* ranks of dp_replicate and dp_shard */
  int64_t rounds;
  const ad_sync *sync; /* [rounds]: how far each round's gradients are reduced; the last is AD_SYNC_ALL; borrowed */
  int scatters;        /* 1: AD_SYNC_SHARD and AD_SYNC_ALL reduce-scatter over the shards; 0: only AD_SYNC_ALL sends */
} ad_leaf_deal;

/* A unit is a run of rounds whose gradients are sent together: it ends at each round that sends. A segment is a run of
 * units that ends at each round with AD_SYNC_ALL. From the slowest to the fastest, leaves are numbered by segment,
 * replica, unit, shard and round; each is a floor cut of what it is in, weighed by rounds.
 *
 * ad_leaf_of returns the leaf that the position computes in a round, or -1: none. The functions below return ranges of
 * leaves: of the unit that `round` is in, those of one position, or of all shards of a replica; of the segment that
 * `round` is in, those of one replica, or of all. */
AD_INTERNAL int64_t ad_leaf_of(const ad_leaf_deal *deal, int64_t replica, int64_t shard, int64_t round);
ad_span ad_leaves_of_position(const ad_leaf_deal *deal, int64_t replica, int64_t shard, int64_t round);
ad_span ad_leaves_of_unit(const ad_leaf_deal *deal, int64_t replica, int64_t round);
ad_span ad_leaves_of_replica(const ad_leaf_deal *deal, int64_t replica, int64_t round);
ad_span ad_leaves_of_segment(const ad_leaf_deal *deal, int64_t round);
/* Returns 1 if the round's gradients are sent, so that a unit ends with it. */
int ad_leaf_round_sends(const ad_leaf_deal *deal, int64_t round);

#endif
