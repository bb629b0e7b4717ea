/* Joining a world that an MPI launcher started: the same version everywhere, who shares a node with whom, and the
 * memory file of each node. Every step ends in the same answer on all ranks. */
#include "comm/mpi/join.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/trait.h"
#include "kernels/kernels.h"
#include "comm/mpi/engine.h"
#include "comm/mpi/world.h"
#include "comm/shm/file.h"
#include "comm/shm/join.h"

/* What ranks tell each other first; its size never changes, so that any two versions can refuse each other. */
typedef struct greeting {
  char version[128];
  char node[376];
  uint32_t variant;  // the widest kernels it has
  uint32_t trait;    // ad_trait_own
} greeting;

typedef struct node_file {
  int32_t status, pid, fd, unused;
} node_file;

#ifndef AD_MPI_VERSION
#define AD_MPI_VERSION AD_VERSION
#endif

/* ---- greeting ---- */

static void read_line(const char *path, char *out, size_t size) {
  FILE *file = fopen(path, "re");
  out[0] = 0;
  if (!file) return;
  if (!fgets(out, (int)size, file)) out[0] = 0;
  out[strcspn(out, "\n")] = 0;
  fclose(file);
}

static void read_link(const char *path, char *out, size_t size) {
  ssize_t bytes = readlink(path, out, size - 1);
  out[bytes < 0 ? 0 : bytes] = 0;
}

// Ranks share memory if they see each other's processes on one running kernel.
static void name_node(char *out, size_t size) {
  const char *given = getenv("ADDEND_NODE");
  char host[128] = "", boot[64], processes[64], network[64];
  if (given && *given) {
    snprintf(out, size, "%s", given);
    return;
  }
  gethostname(host, sizeof host - 1);
  read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
  read_link("/proc/self/ns/pid", processes, sizeof processes);
  read_link("/proc/self/ns/net", network, sizeof network);
  snprintf(out, size, "%s %s %s %s", host, boot, processes, network);
}

static greeting make_greeting(void) {
  greeting own = {.variant = ad_kernels_best(), .trait = ad_trait_own()};
  // What lies in memory that ranks share, or in mail, must be laid out the same.
  snprintf(own.version, sizeof own.version, "%s (layout %zu.%zu.%zu.%d)", AD_MPI_VERSION, sizeof(shm_control),
           sizeof(shm_slot), sizeof(mail_call), SHM_PAYLOAD);
  name_node(own.node, sizeof own.node);
  return own;
}

static ad_status compare_versions(const greeting *all, uint32_t ranks) {
  for (uint32_t i = 1; i < ranks; i++)
    if (strcmp(all[i].version, all[0].version))
      return ad_fail(
          AD_INVALID,
          "ranks run different versions of addend: rank 0 has %s, rank %u has %s; install one version on all "
          "nodes",
          all[0].version, i, all[i].version);
  return AD_OK;
}

static void number_nodes(mpi_world *world, const greeting *all) {
  for (uint32_t i = 0; i < world->ranks; i++) {
    uint32_t same = 0;
    while (strcmp(all[same].node, all[i].node)) same++;
    world->node_of[i] = same == i ? world->nodes++ : world->node_of[same];
  }
}

static ad_variant narrowest(const greeting *all, uint32_t ranks) {
  uint32_t least = all[0].variant;
  for (uint32_t i = 1; i < ranks; i++)
    if (all[i].variant < least) least = all[i].variant;
  return (ad_variant)least;
}

static uint32_t common_trait(const greeting *all, uint32_t ranks) {
  uint32_t common = all[0].trait;
  for (uint32_t i = 1; i < ranks; i++) common = ad_trait_common(common, all[i].trait);
  return common;
}

/* ---- the node's file ---- */

static uint32_t leader_of(const mpi_world *world) {
  uint32_t rank = 0;
  while (world->node_of[rank] != world->node_of[world->rank]) rank++;
  return rank;
}

static uint32_t count_on_node(const mpi_world *world) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < world->ranks; i++) count += world->node_of[i] == world->node_of[world->rank];
  return count;
}

static ad_status open_leaders(const node_file *leader, int *fd, shm_control **out) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", leader->pid, leader->fd);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return ad_fail(AD_SYSTEM,
                   "the memory of this node's first rank could not be opened (%s): %s; if the ranks run in containers "
                   "of their own, give each its own ADDEND_NODE",
                   path, strerror(errno));
  ad_status status = ad_shm_map(file, out);
  if (status) {
    close(file);
    return status;
  }
  *fd = file;
  return AD_OK;
}

// An error on all ranks if any rank has one: `own`, this rank's, or one that names the first rank with an error.
static ad_status agree(const mpi_world *world, const node_file *all, ad_status own, const char *what) {
  if (own) return own;
  for (uint32_t i = 0; i < world->ranks; i++)
    if (all[i].status) return ad_fail(AD_PEER_FAILED, "rank %u %s", i, what);
  return AD_OK;
}

static ad_status share_file(mpi_world *world, node_file *all, int *fd, shm_control **out) {
  uint32_t leader = leader_of(world);
  int leads = leader == world->rank;
  shm_control *control = NULL;
  int file = -1;
  node_file own = {.pid = getpid()};
  ad_status status = leads ? ad_shm_make(world->ranks, 0, 0, &file, &control) : AD_OK;
  if (control) {
    control->joining = count_on_node(world);
    control->launcher = 0;
  }
  own.status = status;
  own.fd = file;
  world->transport->all_gather(&own, sizeof own, all);
  status = agree(world, all, status, "could not make its node's shared memory");
  if (!status && !leads) status = open_leaders(&all[leader], &file, &control);
  own.status = status;
  world->transport->all_gather(&own, sizeof own, all);
  status = agree(world, all, status, "could not open its node's shared memory");
  if (status && control) ad_shm_unmake(file, control);
  if (status) return status;
  *fd = file;
  *out = control;
  return AD_OK;
}

static ad_status join_node(mpi_world *world) {
  node_file *all;
  int fd = -1;
  shm_control *control = NULL;
  AD_TRY(ad_new(world->ranks, &all));
  ad_status status = share_file(world, all, &fd, &control);
  if (!status) status = ad_shm_join(fd, control, world->rank, &world->shm);
  ad_release(all);
  return status;
}

/* ---- the whole ---- */

static ad_status greet(mpi_world *world, greeting *all) {
  greeting own = make_greeting();
  world->transport->all_gather(&own, sizeof own, all);
  AD_TRY(compare_versions(all, world->ranks));
  number_nodes(world, all);
  AD_TRY(join_node(world));
  ad_kernels_choose(narrowest(all, world->ranks));
  ad_trait_choose(common_trait(all, world->ranks));
  return AD_OK;
}

static ad_status join(mpi_world *world) {
  greeting *all;
  AD_TRY(ad_new(world->ranks, &world->node_of));
  AD_TRY(ad_new(world->ranks, &world->left));
  AD_TRY(ad_new(world->ranks, &world->followed));
  AD_TRY(ad_new(world->ranks, &all));
  ad_status status = greet(world, all);
  ad_release(all);
  return status;
}

static ad_status enter(mpi_world *world) {
  ad_mpi_place place;
  AD_TRY(ad_mpi_load(&world->transport));
  if (!world->transport->open(&place))
    return ad_fail(AD_INVALID, "MPI was finalized in this process: a program joins once");
  world->rank = (uint32_t)place.rank;
  world->ranks = (uint32_t)place.size;
  world->tags = (uint32_t)place.tag_max / 2;
  world->free_calls = UINT64_MAX;
  world->last = &world->first;
  ad_status status = ad_mpi_check_ranks(world->transport, world->ranks);
  if (!status && world->ranks > SHM_RANKS_MAX)
    status = ad_fail(AD_INVALID, "%u ranks: this version takes up to %d", world->ranks, SHM_RANKS_MAX);
  if (!status) status = join(world);
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
  if (world->nodes > 1) world->shm->sleep_longest = 200000;  // other nodes cannot wake it
  return ad_comm_create(&ad_engine_mpi, world, world->rank, world->ranks, out);
}
