/* Engine shm: ranks are processes of one machine that map one memory file without a name ("the file"). This header is
 * its head: what every rank sees of every other, and of the world. What members of a group tell each other there is in
 * slot.h, this process's own view of it all in world.h. Positions in the file are offsets, since ranks may map it at
 * different addresses.
 *
 *   file.c     the file: made, mapped
 *   join.c     joined, and opened as a communicator
 *   error.c    the first error of the world
 *   memory.c   each rank's own region of it, for ad_comm_alloc and staging
 *   map.c      mapping what peers made
 *   channel.c  a channel for each group, with a ring of slots for every member
 *   call.c     a call in it: published, matched, consumed
 *   parts.c    who reduces which part
 *   copy.c     what is copied from whom to whom
 *   list.c     the channels of groups that are lists of ranks, used again when they are released
 *   release.c  lists that this rank has released
 *   transfer.c messages from one rank to another; see envelope.h
 *   parcel.c   the sender's memory for them
 *   work.c     all buffers in the file: the work is cut into chunks that any member takes
 *   own.c      buffers elsewhere: each member does its own part, by reading its peers' memory or through staging
 *   pull.c     reading a peer's memory: whether that is possible, and the reading
 *   wake.c     waking who sleeps
 *   deaths.c   whether the ranks' processes still run, where no launcher of addend's looks after them
 *   wait.c     spinning, yielding, sleeping, and finding out whether who is waited for has left
 *   left.c     ranks that left
 *   transfer_wait.c  waiting for the other side of a transfer
 *   circle.c   whether ranks wait for each other
 *   engine.c   the engine's table */
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
  // Bytes between fields that different ranks write, or one rank at different times: the processor fetches cache lines
  // in pairs, so that writing to one disturbs readers of its neighbour.
  SHM_PAIR = 128,
  SHM_CHANNELS = 4096,  // different groups, a power of two
  SHM_RANKS_MAX = 512,
  SHM_WORDS = 384,  // bytes of a sentence in a record
  SHM_CORES_MAX = 1024
};
#define SHM_ANY_RANK UINT64_MAX

typedef enum shm_state { SHM_ABSENT, SHM_JOINED, SHM_LEFT, SHM_DIED } shm_state;

/* One rank, as all ranks see it. */
typedef struct shm_record {
  _Alignas(SHM_LINE) _Atomic uint32_t state;  // shm_state
  _Atomic uint32_t wake;                      // futex: changes when something happens that the rank may wait for
  _Atomic int32_t pid;
  uint32_t variant;  // the widest kernels it has
  uint32_t trait;    // ad_trait_own
  // epoch is odd while the rank is in a long wait and has nothing to look at; the next two say for which call of which
  // channel (0: of a transfer, or of a group that spans nodes; see waits_words).
  _Atomic uint64_t epoch;
  _Atomic uint64_t waits_channel, waits_sequence;
  // A transfer that is waited for: the other side's rank + 1, or SHM_ANY_RANK (0: it waits for none); then the offset
  // of the list that it is to be in, 0: the world; then a send's parcel, 0: it is a receive.
  _Atomic uint64_t waits_peer, waits_list, waits_parcel;
  _Atomic uint32_t backlog;  // 1: it has messages for which it found no room yet
  int32_t exit_status;       // of a rank that left without closing; else 0
  // A word in the rank's own memory, at this address of its process, for the others to try to read. 0: they may not.
  uint64_t probe_at, probe_holds;
  // Calls that the rank has published; of the last one its channel and its place there. For the watchdog.
  _Alignas(SHM_LINE) _Atomic uint64_t calls;
  _Atomic uint64_t last_channel, last_sequence;
  // The last transfer or call that spans nodes (its channel is 0), and in words whom the rank waits for in which call.
  uint32_t last_op;
  char last_site[AD_SITE_MAX], waits_words[SHM_WORDS];
} shm_record;

/* A group that some rank has called: where its channel is. In a hash table of the file. */
typedef struct shm_entry {
  _Atomic uint32_t state;  // 0 free, 1 being written, 2 written
  uint32_t members;
  uint64_t channel;
  ad_group_shape shape;
} shm_entry;

/* A group that is a list. Its ranks stand behind its channel. Written under the lock of lists. */
typedef struct shm_list {
  _Atomic uint64_t id;  // of the group; 0: the channel waits for another list of as many ranks
  uint32_t released;    // members that need it no more
  shm_entry entry;
} shm_list;

/* The head of the file. */
typedef struct shm_control {
  uint64_t magic, file_bytes, ranks;
  uint64_t records_start, queues_start, channels_start, channels_bytes, regions_start, region_bytes;
  uint64_t joining;   // how many ranks join this file: those of this node, if the world has several
  uint64_t launcher;  // the process that started the ranks or their parents; 0: each rank's own parent started it
  // One cache line that every call reads and that is hardly ever written.
  _Alignas(SHM_LINE) _Atomic uint32_t failed;  // 0 no, 1 being written, 2 the error below holds
  _Atomic uint32_t sleepers;
  _Alignas(SHM_LINE) _Atomic uint32_t joined;
  _Atomic uint32_t tried, unreadable;          // how many ranks tried to read all others' memory; 1: one could not
  _Atomic uint64_t cores[SHM_CORES_MAX / 64];  // bit i: some rank may run on core i
  _Atomic uint64_t channels_used;
  _Atomic uint64_t promised;         // bytes that ranks are making pages for and have not made yet
  uint32_t fail_status, fail_cause;  // ad_status: what calls return; what the failing rank gave as its reason
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
