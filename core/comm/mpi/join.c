/* Joins a world that an MPI launcher started: ranks exchange data by MPI, and ranks of one node share memory
 * (comm/node.h). */
#include "comm/mpi/join.h"

#include <string.h>
#include "base/memory.h"
#include "base/trait.h"
#include "kernels/kernels.h"
#include "comm/mpi/backend.h"
#include "comm/mpi/world.h"
#include "comm/mpi/transfer.h"
#include "comm/node.h"

static ad_status all_gather(void *context, const void *own, size_t bytes, void *all) {
  const mpi_world *world = context;
  world->transport->all_gather(own, bytes, all);
  return AD_OK;
}

// Exchanges data with the other ranks, finds out which rank is on which node, and joins this node's memory file.
static ad_status join_nodes(mpi_world *world) {
  ad_meeting meeting = {world->rank, world->ranks, world, all_gather};
  ad_nodes nodes;
  AD_TRY(ad_nodes_greet(&meeting, sizeof(mail_call), &nodes));
  memcpy(world->node_of, nodes.of, world->ranks * sizeof *world->node_of);
  world->nodes = nodes.count;
  ad_status status = ad_nodes_share(&meeting, &nodes, 0, &world->shm);
  if (!status) {
    ad_kernels_choose((ad_variant)nodes.variant);
    ad_trait_choose(nodes.trait);
  }
  ad_nodes_clear(&nodes);
  return status;
}

static ad_status join_world(mpi_world *world) {
  AD_TRY(ad_new(world->ranks, &world->node_of));
  AD_TRY(ad_new(world->ranks, &world->left));
  AD_TRY(ad_new(world->ranks, &world->followed));
  return join_nodes(world);
}

// Loads an MPI and joins its job.
static ad_status enter(mpi_world *world) {
  ad_mpi_place place;
  AD_TRY(ad_mpi_load(&world->transport));
  if (!world->transport->open(&place))
    return ad_fail(AD_INVALID,
                   "MPI was already finalized in this process, so the process cannot join a world again; join once, "
                   "and keep the world until the program ends");
  world->rank = (uint32_t)place.rank;
  world->ranks = (uint32_t)place.size;
  world->tags = (uint32_t)place.tag_max / 2;
  world->free_calls = UINT64_MAX;
  world->last = &world->first;
  ad_status status = ad_mpi_check_ranks(world->transport, world->ranks);
  if (!status && world->ranks > SHM_RANKS_MAX)
    status =
        ad_fail(AD_INVALID, "the world has %u ranks, but this version of addend supports at most %d; start fewer ranks",
                world->ranks, SHM_RANKS_MAX);
  if (!status) status = join_world(world);
  if (status) world->transport->close();
  return status;
}

ad_status ad_mpi_open(ad_comm **out) {
  mpi_world *world;
  AD_TRY(ad_new(1, &world));
  ad_status status = enter(world);
  if (status) {
    ad_release(world->node_of);
    ad_release(world->left);
    ad_release(world->followed);
    ad_release(world);
    return status;
  }
  if (world->nodes > 1) {
    world->shm->sleep_longest = 200000;  // nanoseconds; short, since ranks of other nodes cannot wake this rank
    ad_mpi_transfers_begin(world);
  }
  return ad_comm_create(&ad_backend_mpi, world, world->rank, world->ranks, out);
}
