/* Routes in a group that spans nodes: which member sums which addends, and which values it sends to which member, so
 * that as few bytes as possible are sent between nodes. This is arithmetic on the places of the members.
 *
 * The members of some parts of the summing tree (kernels/tree.h) are all on one node. Such a part may be sent to
 * another node as one value, its sum: one of its members reads the others' addends and sends the sum. So for each slice
 * every node sends one value for each largest such part. What a member gives to all others goes to each other node only
 * once: one member there passes it on. */
#ifndef COMM_MPI_ROUTES_H
#define COMM_MPI_ROUTES_H
#include "comm/call.h"

/* A member's node and its place there. */
typedef struct mpi_place {
  uint32_t node;
  uint32_t first, count;        // the members of the largest part of the tree that has this member and is on one node
  uint32_t mates, mates_count;  // where mpi_routes.mates lists the members of its node, itself among them
} mpi_place;

typedef struct mpi_routes {
  uint32_t members;
  mpi_place *places;  // owned, as the next array
  uint32_t *mates;
} mpi_routes;

/* node_of: the node of each member. AD_MEMORY: *out holds nothing. */
ad_status ad_mpi_routes_make(uint32_t members, const uint32_t *node_of, mpi_routes *out) AD_CHECKED;
void ad_mpi_routes_free(mpi_routes *routes);

static inline int ad_mpi_same_node(const mpi_routes *routes, uint32_t a, uint32_t b) {
  return routes->places[a].node == routes->places[b].node;
}
/* Returns 1 if member i's node sends other nodes the sum of i's part of the tree instead of each addend. It does if the
 * part has several members and its sum, in the accumulate dtype, has no more bytes than their addends. */
int ad_mpi_sums_first(const mpi_routes *routes, const ad_call *call, uint32_t i);
/* Returns the member that reads member i's addends of slice k: member k, or the member of i's node that sums i's part
 * of the tree for k. */
uint32_t ad_mpi_reader(const mpi_routes *routes, const ad_call *call, uint32_t i, uint32_t k);
/* Member k gives a value to all members. Returns the member from which member i gets the value: k, or a member of i's
 * node that passes it on. */
uint32_t ad_mpi_giver(const mpi_routes *routes, const ad_call *call, uint32_t k, uint32_t i);

#endif
