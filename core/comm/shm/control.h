/* Backend shm: ranks are processes of one machine that map one memory file without a name ("the file"). This header
 * describes the head of the file: the data that all ranks see about each other and about the world. slot.h describes
 * the data that the members of a group exchange in the file; world.h the data that each process keeps for itself.
 * Positions in the file are offsets, since ranks may map the file at different addresses.
 *
 *   file.c     makes and maps the file
 *   join.c     joins the world, and opens it as a communicator
 *   error.c    the first error of the world
 *   memory.c   each rank's own region of the file, for ad_comm_alloc and staging
 *   map.c      maps pages of memory that peers made
 *   channel.c  a channel for each group, with a ring of slots for every member
 *   call.c     publishes, matches and consumes a call in its channel
 *   parts.c    which member reduces which part of a value
 *   copy.c     which bytes are copied from which member to which member
 *   list.c     the channels of groups that are lists of ranks; a released list's channel is used again
 *   release.c  lists that this rank has released
 *   transfer.c messages from one rank to another; see envelope.h
 *   parcel.c   the sender's memory for messages of transfers
 *   work.c     calls with all buffers in the file: the work is divided into chunks that any member may do
 *   own.c      calls with buffers elsewhere: each member does its part, reading its peers' memory or through staging
 *   pull.c     reading a peer's memory: whether that is possible, and the reading
 *   wake.c     wakes ranks that sleep
 *   deaths.c   whether the ranks' processes still run, if addend's launcher does not watch them
 *   wait.c     spinning, yielding, sleeping, and finding out whether an awaited rank has left
 *   left.c     ranks that left
 *   transfer_wait.c  waiting for the other side of a transfer
 *   circle.c   whether ranks wait for each other in a circle
 *   backend.c   the backend's table */
#ifndef COMM_SHM_CONTROL_H
#define COMM_SHM_CONTROL_H
#include <stdatomic.h>
#include <stdint.h>
#include "addend/status.h"
#include "base/error.h"
#include "comm/signature.h"
#include "mesh/group.h"

enum {
  SHM_LINE = 64,  // bytes of a cache line
  // Bytes between two fields that different ranks write, or that one rank writes at different times. The processor
  // fetches cache lines in pairs, so a write to one line disturbs readers of the neighbouring line.
  SHM_PAIR = 128,
  SHM_CHANNELS = 4096,  // most groups in which a world's ranks make calls; a power of two
  SHM_RANKS_MAX = 512,
  SHM_WORDS = 384,  // bytes of waits_words in a record
  SHM_CORES_MAX = 1024
};
#define SHM_ANY_RANK UINT64_MAX

typedef enum shm_state { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_DIED } shm_state;

/* One rank, as all ranks see it. */
typedef struct shm_record {
  _Alignas(SHM_LINE) _Atomic uint32_t state;  // shm_state
  _Atomic uint32_t wake;                      // futex on which the rank sleeps; other ranks change it to wake the rank
  _Atomic int32_t pid;
  uint32_t variant;  // the rank's widest kernels (ad_variant)
  uint32_t trait;    // ad_trait_own
  // epoch is odd while the rank is in a long wait in which it can advance no call. waits_channel and waits_sequence
  // identify the awaited call: its channel and its sequence number (channel 0: a transfer or a call that spans nodes;
  // see waits_words).
  _Atomic uint64_t epoch;
  _Atomic uint64_t waits_channel, waits_sequence;
  // Only if the rank waits for a transfer. waits_peer: the peer's rank + 1, or SHM_ANY_RANK (0: it waits for no peer).
  // waits_list: the channel offset of the list to which the peer must belong (0: the world). waits_parcel: the offset
  // of a send's parcel (0: it is a receive).
  _Atomic uint64_t waits_peer, waits_list, waits_parcel;
  _Atomic uint32_t backlog;  // 1: the rank has messages to send for which the queues had no free cell yet
  int32_t exit_status;       // exit status of a rank that left without closing; else 0
  // A word that the other ranks try to read to find out whether they may. probe_at: its address in this rank's process
  // (0: they are not permitted to read it); probe_holds: its value.
  uint64_t probe_at, probe_holds;
  // For the watchdog. calls: how many calls the rank has published; last_channel and last_sequence: channel and
  // sequence number of its last call.
  _Alignas(SHM_LINE) _Atomic uint64_t calls;
  _Atomic uint64_t last_channel, last_sequence;
  // last_op and last_site describe the rank's last transfer or call that spans nodes (channel 0). waits_words: a
  // sentence on what the rank waits for.
  uint32_t last_op;
  char last_site[AD_SITE_MAX], waits_words[SHM_WORDS];
} shm_record;

/* An entry of the shared memory file's hash table of groups: a group on which some rank has made a call, and its
 * channel's offset. */
typedef struct shm_entry {
  _Atomic uint32_t state;  // 0 free, 1 being written, 2 written
  uint32_t members;
  uint64_t channel;
  ad_group_shape shape;
} shm_entry;

/* A group that is a list of ranks. The ranks are in the shared memory file after the group's channel. Written under
 * lists_locked. */
typedef struct shm_list {
  _Atomic uint64_t id;  // the group's identity; 0: the channel is free for another list of equally many ranks
  uint32_t released;    // how many members have released the list
  shm_entry entry;
} shm_list;

/* The head of the shared memory file. */
typedef struct shm_control {
  uint64_t magic, file_bytes, ranks;
  uint64_t records_start, queues_start, channels_start, channels_bytes, regions_start, region_bytes;
  uint64_t joining;   // how many ranks join this file: those of this node, if the world has several nodes
  uint64_t launcher;  // the launcher, an ancestor of all ranks; 0: another launcher started the ranks
  // One cache line that every call reads and that is hardly ever written.
  _Alignas(SHM_LINE) _Atomic uint32_t failed;  // 0: no error; 1: an error is being written; 2: fail_* are valid
  _Atomic uint32_t sleepers;
  _Alignas(SHM_LINE) _Atomic uint32_t joined;
  // tried: how many ranks have tried to read the memory of all other ranks; unreadable 1: some rank could not read it
  _Atomic uint32_t tried, unreadable;
  _Atomic uint64_t cores[SHM_CORES_MAX / 64];  // bit i: some rank may run on core i
  _Atomic uint64_t channels_used;
  _Atomic uint64_t promised;         // bytes of memory pages that ranks are about to make and have not made yet
  uint32_t fail_status, fail_cause;  // ad_status: the error that calls return; the cause that the failing rank gave
  int32_t fail_rank;
  char fail_text[AD_MESSAGE_MAX];
  _Atomic uint32_t lists_locked, lists_used;
  shm_entry entries[SHM_CHANNELS];
  shm_list lists[SHM_CHANNELS];
} shm_control;

static inline shm_record *ad_shm_records(shm_control *control) {
  return (shm_record *)((char *)control + control->records_start);
}

#endif
