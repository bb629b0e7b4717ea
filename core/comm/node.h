/* Finds out which ranks share a node, checks that all run one version of addend, and makes each node's shared memory
 * file. Every step ends with the same result on all ranks. */
#ifndef COMM_NODE_H
#define COMM_NODE_H
#include "comm/meet.h"
#include "comm/shm/world.h"

/* The nodes of a world, as ad_nodes_greet found them. */
typedef struct ad_nodes {
  uint32_t count;          /* number of nodes */
  uint32_t *of;            /* owned: each rank's node; nodes are numbered in the order of their first ranks */
  uint32_t *first;         /* owned: for each rank, the lowest rank of its node */
  uint32_t variant, trait; /* the widest kernels (ad_variant), and the traits, that all ranks have */
} ad_nodes;

/* Exchanges versions and names of nodes. Fails unless `layout`, and the sizes of shm's structures, are the same on all
 * ranks. On failure *out owns nothing. */
ad_status ad_nodes_greet(const ad_meeting *meeting, size_t layout, ad_nodes *out) AD_CHECKED;
void ad_nodes_clear(ad_nodes *nodes);
/* Joins this rank to the memory file of its node. `watches` 1: no launcher watches the ranks' processes, so each rank
 * checks whether the other ranks' processes still run. */
ad_status ad_nodes_share(const ad_meeting *meeting, const ad_nodes *nodes, int watches, shm_world **out) AD_CHECKED;
/* Returns AD_INVALID unless all ranks are on one node. The message names a rank that is not on rank 0's node, and says
 * what to do. */
ad_status ad_nodes_check_one(const ad_meeting *meeting, const ad_nodes *nodes) AD_CHECKED;

#endif
