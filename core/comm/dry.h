/* Opens backend dry: one process acts as a rank, and nothing is sent. */
#ifndef COMM_DRY_H
#define COMM_DRY_H
#include "comm/call.h"
#include "mesh/group.h"
#include "base/internal.h"

/* Opens backend dry as the same rank of the same world as `like`. `like` is borrowed and decides which ranks share
 * memory, so that code on the new comm chooses the same algorithms as on `like`. */
AD_INTERNAL ad_status ad_comm_open_dry_like(const ad_comm *like, ad_comm **out) AD_CHECKED;

/* Returns what ad_comm_shares returns, for a group given by its shape; defined in comm.c. */
int ad_comm_shares_shape(const ad_comm *comm, const ad_group_shape *shape);

/* Opens backend dry in a world in which each node has `ranks_per_node` consecutive ranks; 0: all ranks share one
 * node. */
AD_INTERNAL AD_CHECKED ad_status ad_comm_open_dry_nodes(int64_t rank, int64_t size, int64_t ranks_per_node,
                                                        ad_comm **out);

#endif
