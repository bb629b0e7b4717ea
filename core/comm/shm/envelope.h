/* What the two sides of a transfer tell each other in the file.
 *
 * The path of one message. Every rank has a queue of envelopes in the file, into which any rank puts; its owner alone
 * takes out. A send fills an envelope: the group's identity, the tag, how many bytes of what dtype, from where in the
 * program, and where the bytes are. They are
 *
 *   in the envelope        up to SHM_INLINE_MESSAGE of them
 *   in the sender's parcel up to SHM_ROOM: copied when they are posted
 *   where they are         in the file, or in the sender's process, whose memory the receiver reads
 *   in a copy in the file  where ranks may not read each other's memory, or nobody takes the message for a while
 *
 * A rank that is inside any call empties its queue. An envelope goes to the first receive posted here that wants it
 * (same group, same tag, that sender or any), or else to the messages that wait for a receive; a receive that is posted
 * takes the first of those that it wants. Envelopes of one sender come in the order of its sends, so messages do. The
 * receiver copies the bytes and says so in the parcel, a piece of the sender's memory with a word of state:
 *
 *   POSTED --receiver--> TAKEN --receiver--> DONE           read where the sender has them
 *   POSTED --sender----> MOVING --sender---> COPIED --receiver--> DONE     copied first: complete for the sender
 *   POSTED --sender----> WITHDRAWN                           the sender left before
 *
 * From POSTED both sides go by compare-and-swap (acquire and release), so one of them wins; every later state has one
 * writer, who stores with release what the other loads with acquire. A queue's cell is reserved by compare-and-swap of
 * `taken`, written, and published with release; its owner reads it after an acquire and gives it back by `drained`,
 * again with release. Where a queue is full the sender keeps its envelopes, in order, and goes on when it is inside a
 * call again; a send is complete only when its envelope is in the queue. */
#ifndef COMM_SHM_ENVELOPE_H
#define COMM_SHM_ENVELOPE_H
#include "comm/shm/control.h"

enum {
  SHM_CELLS = 256,           // envelopes in a queue, a power of two
  SHM_INLINE_MESSAGE = 120,  // bytes of a message that fit into its envelope
  SHM_ROOM = 8192 - SHM_PAIR
};

/* Where the receiver finds a message. */
typedef enum shm_whereabouts {
  SHM_IN_ENVELOPE,
  SHM_IN_FILE,     // `at` is an offset
  SHM_IN_PROCESS,  // `at` is an address of the sender's
  SHM_ELSEWHERE    // from another node: `at` is engine mpi's record in this process, to be freed
} shm_whereabouts;

/* What a sender puts into the receiver's queue for each message. */
typedef struct shm_envelope {
  uint64_t group;  // identity of the list; 0: the world
  int64_t tag;
  uint64_t bytes, at;
  uint64_t parcel;  // offset of the message's parcel; 0: the envelope has all bytes
  uint32_t sender;
  uint8_t where, dtype;
  char site[AD_SITE_MAX];
  unsigned char inlined[SHM_INLINE_MESSAGE];
} shm_envelope;

/* A place for one envelope in a queue. */
typedef struct shm_cell {
  _Alignas(SHM_LINE) _Atomic uint64_t published;  // number of the envelope in this cell, + 1
  shm_envelope envelope;
} shm_cell;

/* A rank's queue of envelopes. Any rank puts envelopes in, and only the owner takes them out. */
typedef struct shm_queue {
  _Alignas(SHM_PAIR) _Atomic uint64_t taken;    // cells that senders have reserved so far
  _Alignas(SHM_PAIR) _Atomic uint64_t drained;  // cells that the owner has emptied so far
  _Alignas(SHM_PAIR) shm_cell cells[SHM_CELLS];
} shm_queue;

typedef enum shm_parcel_state {
  SHM_POSTED = 1,
  SHM_TAKEN,
  SHM_DONE,
  SHM_MOVING,
  SHM_COPIED,
  SHM_WITHDRAWN
} shm_parcel_state;

/* A piece of the sender's memory in the file, by whose state both sides of a message agree on who copies its bytes. */
typedef struct shm_parcel {
  _Alignas(SHM_PAIR) _Atomic uint32_t state;  // shm_parcel_state
  uint64_t copy;                              // offset to which the bytes were copied; valid in state COPIED
  // Used by the sender alone: the next parcel in its list, and memory of the file that is freed with this one.
  struct shm_parcel *next;
  void *memory;
  _Alignas(SHM_PAIR) unsigned char room[SHM_ROOM];
} shm_parcel;

static inline shm_queue *ad_shm_queues(shm_control *control) {
  return (shm_queue *)((char *)control + control->queues_start);
}
static inline int ad_shm_queue_empty(shm_queue *queue) {
  return atomic_load(&queue->taken) == atomic_load(&queue->drained);
}

#endif
