/* Finds out which ranks share a node, and makes or opens the memory file of each node. */
#include "comm/node.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/trait.h"
#include "kernels/kernels.h"
#include "comm/shm/file.h"
#include "comm/shm/join.h"

/* The first data that ranks exchange. The size of this struct must never change, so that ranks of different versions
 * can read each other's greeting and refuse to work together. */
typedef struct greeting {
  char version[128];
  char node[376];
  uint32_t variant;  // the widest kernels of this rank
  uint32_t trait;    // ad_trait_own
} greeting;

/* The data that ranks exchange while they open memory files: a status, the process id, and that process's descriptor
 * of the file (-1: none). */
typedef struct node_file {
  int32_t status, pid, fd, unused;
} node_file;

#ifndef AD_NODE_VERSION
#define AD_NODE_VERSION AD_VERSION
#endif

/* ---- greeting: all ranks exchange their nodes' names ---- */

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

// Writes a name of this node. Ranks share memory if they run on the same kernel and see each other's processes.
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

static greeting make_greeting(size_t layout) {
  greeting own = {.variant = ad_kernels_best(), .trait = ad_trait_own()};
  // Structures in memory that ranks share, or in messages between nodes, must have the same sizes on all ranks.
  snprintf(own.version, sizeof own.version, "%s (layout %zu.%zu.%zu.%d)", AD_NODE_VERSION, sizeof(shm_control),
           sizeof(shm_slot), layout, SHM_PAYLOAD);
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

// Numbers the nodes in the order of their first ranks.
static void number_nodes(const greeting *all, uint32_t ranks, ad_nodes *out) {
  for (uint32_t i = 0; i < ranks; i++) {
    uint32_t same = 0;
    while (strcmp(all[same].node, all[i].node)) same++;
    out->first[i] = same;
    out->of[i] = same == i ? out->count++ : out->of[same];
  }
}

// Finds the widest kernels (ad_variant) and the trait (base/trait.h) that every rank has.
static void find_common(const greeting *all, uint32_t ranks, ad_nodes *out) {
  out->variant = all[0].variant;
  out->trait = all[0].trait;
  for (uint32_t i = 1; i < ranks; i++) {
    if (all[i].variant < out->variant) out->variant = all[i].variant;
    out->trait = ad_trait_common(out->trait, all[i].trait);
  }
}

static ad_status greet(const ad_meeting *meeting, size_t layout, greeting *all, ad_nodes *out) {
  greeting own = make_greeting(layout);
  AD_TRY(meeting->all_gather(meeting->context, &own, sizeof own, all));
  AD_TRY(compare_versions(all, meeting->ranks));
  AD_TRY(ad_new(meeting->ranks, &out->of));
  AD_TRY(ad_new(meeting->ranks, &out->first));
  number_nodes(all, meeting->ranks, out);
  find_common(all, meeting->ranks, out);
  return AD_OK;
}

ad_status ad_nodes_greet(const ad_meeting *meeting, size_t layout, ad_nodes *out) {
  greeting *all;
  *out = (ad_nodes){.count = 0};
  AD_TRY(ad_new(meeting->ranks, &all));
  ad_status status = greet(meeting, layout, all, out);
  ad_release(all);
  if (status) ad_nodes_clear(out);
  return status;
}

void ad_nodes_clear(ad_nodes *nodes) {
  ad_release(nodes->of);
  ad_release(nodes->first);
  *nodes = (ad_nodes){.count = 0};
}

ad_status ad_nodes_check_one(const ad_meeting *meeting, const ad_nodes *nodes) {
  for (uint32_t i = 0; i < meeting->ranks; i++)
    if (nodes->of[i])
      return ad_fail_on_all_ranks(
          AD_INVALID,
          "rank %u is not on the same host, or not in the same container, as rank 0, but without MPI all ranks share "
          "one machine's memory. Start all ranks on one host, in one pid and network namespace, or start them "
          "with mpirun, which can use several hosts",
          i);
  return AD_OK;
}

/* ---- the memory file that a node's ranks share ---- */

static uint32_t count_on_node(const ad_nodes *nodes, uint32_t rank, uint32_t ranks) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < ranks; i++) count += nodes->of[i] == nodes->of[rank];
  return count;
}

// Opens the file that the node's first rank (the leader) made, through /proc/PID/fd of the leader's process.
static ad_status open_leaders(const node_file *leader, int *fd, shm_control **out) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", leader->pid, leader->fd);
  int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0)
    return ad_fail(AD_SYSTEM,
                   "the shared memory of this node's first rank could not be opened at %s (%s); if the ranks run in "
                   "separate containers, set a different ADDEND_NODE in each container",
                   path, strerror(errno));
  ad_status status = ad_shm_map(file, out);
  if (status) {
    close(file);
    return status;
  }
  *fd = file;
  return AD_OK;
}

// Fails on all ranks if any rank failed. A rank that failed keeps its own error; every other rank gets an error that
// names the first rank that failed.
static ad_status agree(const ad_meeting *meeting, const node_file *all, ad_status own, const char *what) {
  if (own) return own;
  for (uint32_t i = 0; i < meeting->ranks; i++)
    if (all[i].status)
      return ad_fail(AD_PEER_FAILED, "the ranks cannot communicate, because rank %u %s; see what that rank printed", i,
                     what);
  return AD_OK;
}

// Makes the memory file of this rank's node.
static ad_status make_file(const ad_meeting *meeting, const ad_nodes *nodes, int *fd, shm_control **out) {
  AD_TRY(ad_shm_make(meeting->ranks, 0, 0, fd, out));
  (*out)->joining = count_on_node(nodes, meeting->rank, meeting->ranks);
  (*out)->launcher = 0;
  return AD_OK;
}

// Sends this rank's status and file descriptor to all ranks. Fails on all ranks if any rank failed; `what` names the
// failed step in the message.
static ad_status share_status(const ad_meeting *meeting, node_file *own, ad_status status, const char *what,
                              node_file *all) {
  own->status = status;
  ad_status met = meeting->all_gather(meeting->context, own, sizeof *own, all);
  return met ? met : agree(meeting, all, status, what);
}

// Makes the node's file on its first rank, and opens it on the node's other ranks.
static ad_status share_file(const ad_meeting *meeting, const ad_nodes *nodes, node_file *all, int *fd,
                            shm_control **out) {
  uint32_t leader = nodes->first[meeting->rank];
  int leads = leader == meeting->rank;
  shm_control *control = NULL;
  int file = -1;
  node_file own = {.pid = getpid()};
  ad_status status = leads ? make_file(meeting, nodes, &file, &control) : AD_OK;
  own.fd = file;
  status = share_status(meeting, &own, status, "could not make its node's shared memory", all);
  if (!status) {
    if (!leads) status = open_leaders(&all[leader], &file, &control);
    status = share_status(meeting, &own, status, "could not open its node's shared memory", all);
  }
  if (status && control) ad_shm_unmake(file, control);
  if (status) return status;
  *fd = file;
  *out = control;
  return AD_OK;
}

static ad_status share(const ad_meeting *meeting, const ad_nodes *nodes, node_file *all, int32_t *pids, int watches,
                       shm_world **out) {
  int fd = -1;
  shm_control *control = NULL;
  AD_TRY(share_file(meeting, nodes, all, &fd, &control));
  for (uint32_t i = 0; i < meeting->ranks; i++) pids[i] = all[i].pid;
  return ad_shm_join(fd, control, meeting->rank, watches ? pids : NULL, out);
}

ad_status ad_nodes_share(const ad_meeting *meeting, const ad_nodes *nodes, int watches, shm_world **out) {
  node_file *all;
  int32_t *pids;
  AD_TRY(ad_new(meeting->ranks, &all));
  ad_status status = ad_new(meeting->ranks, &pids);
  if (!status) {
    status = share(meeting, nodes, all, pids, watches, out);
    ad_release(pids);
  }
  ad_release(all);
  return status;
}
