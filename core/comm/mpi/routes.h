/* Which member of a group that spans nodes sums what, and which sends what to whom, so that as little as possible
 * crosses between nodes. This is arithmetic on the places of the members.
 *
 * A part of the tree (kernels/tree.h) whose members are all on one node may cross as one value, its sum: one of the
 * members reads the addends of the others and sends it. So for each slice of a sum, every node sends as many values as
 * it has largest such parts. What a member gives to all others goes to each other node once: one member there passes it
 * on. */
#ifndef COMM_MPI_ROUTES_H
#define COMM_MPI_ROUTES_H
#include "comm/call.h"

/* Where a member is. */
typedef struct mpi_place {
  uint32_t node;
  uint32_t first, count;        // the largest part of the tree that it belongs to and that lies on its node
  uint32_t mates, mates_count;  // the members of its node, itself among them: their place in mpi_routes.mates
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
/* 1 if member i's node sends the sum of i's part of the tree to other nodes instead of each addend: if the part has
 * several members and its sum, in the accumulate dtype, is no longer than their addends. */
int ad_mpi_sums_first(const mpi_routes *routes, const ad_call *call, uint32_t i);
/* The member that reads member i's addends of slice k: k itself, or the member of i's node that sums i's part of the
 * tree for k. */
uint32_t ad_mpi_reader(const mpi_routes *routes, const ad_call *call, uint32_t i, uint32_t k);
/* The member from which member i gets what member k gives to all members: k itself, or a member of i's node that passes
 * it on. */
uint32_t ad_mpi_giver(const mpi_routes *routes, const ad_call *call, uint32_t k, uint32_t i);

#endif
