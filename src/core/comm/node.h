/* Ranks that have met: one version of addend everywhere, who shares a node with whom, and the memory file of each node.
 * Every step ends in the same answer on all ranks. */
#ifndef COMM_NODE_H
#define COMM_NODE_H
#include "comm/meet.h"
#include "comm/shm/world.h"

/* What the greeting found out. */
typedef struct ad_nodes {
  uint32_t count;
  uint32_t *of;            /* owned: each rank's node, numbered by their first ranks */
  uint32_t *first;         /* owned: of each rank, the first rank of its node */
  uint32_t variant, trait; /* what all ranks have of kernels (ad_variant) and traits */
} ad_nodes;

/* `layout`: a number that must be the same on all ranks, beside what shm lays out in memory. Releases what it made on
 * failure. */
ad_status ad_nodes_greet(const ad_meeting *meeting, size_t layout, ad_nodes *out) AD_CHECKED;
void ad_nodes_clear(ad_nodes *nodes);
/* Joins this rank to the file of its node. `watches`: ranks look themselves whether the others' processes still run,
 * since no launcher does. */
ad_status ad_nodes_share(const ad_meeting *meeting, const ad_nodes *nodes, int watches, shm_world **out) AD_CHECKED;
/* AD_INVALID unless all ranks are on one node: says which is not on rank 0's, and what to do. */
ad_status ad_nodes_check_one(const ad_meeting *meeting, const ad_nodes *nodes) AD_CHECKED;

#endif
