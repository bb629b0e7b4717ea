/* Routes in a group that spans nodes: which member sums which addends, and which values it sends to which member, so
 * that as few bytes as possible are sent between nodes. The functions only compute; nothing is sent here.
 *
 * The members of some subtrees of the summing tree (kernels/tree.h) are all on one node. Such a subtree (a "part" of
 * the tree) may be sent to another node as one value, its sum: one of its members reads the others' addends and sends
 * the sum. So for each slice every node sends one value for each of its largest such parts. A value that a member sends
 * to all others is sent to each other node only once: one member of that node passes it on. */
#ifndef COMM_MPI_ROUTES_H
#define COMM_MPI_ROUTES_H
#include "comm/call.h"

/* A member's node, its part of the summing tree, and the other members of its node. */
typedef struct mpi_place {
  uint32_t node;
  uint32_t first, count;        // the members of the largest part of the tree that has this member and is on one node
  uint32_t mates, mates_count;  // the members of its node, itself included, are mpi_routes.mates[mates], ...
} mpi_place;

typedef struct mpi_routes {
  uint32_t members;
  mpi_place *places;  // owned, as is `mates`
  uint32_t *mates;
} mpi_routes;

/* `node_of` is the node of each member. On AD_MEMORY *out owns nothing. */
ad_status ad_mpi_routes_make(uint32_t members, const uint32_t *node_of, mpi_routes *out) AD_CHECKED;
void ad_mpi_routes_free(mpi_routes *routes);

static inline int ad_mpi_same_node(const mpi_routes *routes, uint32_t a, uint32_t b) {
  return routes->places[a].node == routes->places[b].node;
}
/* Returns 1 if member i's node sends other nodes the sum of i's part of the tree instead of each addend. It does so
 * if the part has several members and its sum, in the accumulate dtype, has no more bytes than their addends. It never
 * does so for sums of leaves, which use another tree. */
int ad_mpi_sums_first(const mpi_routes *routes, const ad_call *call, uint32_t i);
/* Returns the member that reads member i's addends of slice k: member k itself, or the member of i's node that sums i's
 * part of the tree for k. */
uint32_t ad_mpi_reader(const mpi_routes *routes, const ad_call *call, uint32_t i, uint32_t k);
/* Returns the member from which member i gets a value that member k sends to all members: member k itself, or a
 * member of i's node that passes the value on. */
uint32_t ad_mpi_giver(const mpi_routes *routes, const ad_call *call, uint32_t k, uint32_t i);

#endif
