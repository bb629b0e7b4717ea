/* The data that the two sides of a transfer exchange in the shared memory file.
 *
 * The path of one message. Every rank has a queue of envelopes in the file. Any rank puts envelopes in; only the owner
 * takes them out. A send fills an envelope with the group's identity, the tag, the number of bytes, the dtype, the
 * place in the program, and where the bytes are. The bytes are
 *
 *   in the envelope        up to SHM_INLINE_MESSAGE bytes
 *   in the sender's parcel up to SHM_ROOM bytes: copied when the send is posted
 *   in the send's buffer   in the file, or in the sender's process, whose memory the receiver reads
 *   in a copy in the file  where ranks may not read each other's memory, or nobody takes the message for a while
 *
 * A rank that is inside any call empties its queue. An envelope goes to the first posted receive that matches it (same
 * group, same tag, and this sender or any source). If none matches, the message is kept. A new receive takes the oldest
 * kept message that matches. Envelopes, and so messages, of one sender come in the order of its sends. The receiver
 * copies the bytes and records this in the parcel, a piece of the sender's memory with a word of state:
 *
 *   POSTED --receiver--> TAKEN --receiver--> DONE           read where the sender has them
 *   POSTED --sender----> MOVING --sender---> COPIED --receiver--> DONE     copied first: complete for the sender
 *   POSTED --sender----> WITHDRAWN                           the sender left before
 *
 * Both sides leave POSTED by compare-and-swap (acquire and release), so one of them wins. Every later state has one
 * writer, which stores with release; the other side loads with acquire. A sender reserves a cell of a queue by
 * compare-and-swap of `taken`, writes it, and publishes it with release. The queue's owner reads it after an acquire
 * and returns it by `drained`, again with release. If a queue is full, the sender keeps its envelopes, in order, until
 * it is inside a call again; a send is complete only when its envelope is in the queue. */
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
  SHM_ELSEWHERE    // from another node: `at` is the address of backend mpi's record in this process, to be freed
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

/* An element of a queue, for one envelope. */
typedef struct shm_cell {
  _Alignas(SHM_LINE) _Atomic uint64_t published;  // the number of the envelope that this cell contains, plus 1
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

/* A piece of the sender's memory in the shared memory file, for a message that does not fit into its envelope. Its
 * state decides which of the two sides of the message copies the bytes. */
typedef struct shm_parcel {
  _Alignas(SHM_PAIR) _Atomic uint32_t state;  // shm_parcel_state
  uint64_t copy;                              // offset to which the bytes were copied; valid in state COPIED
  // Used by the sender alone: the next parcel in its list of parcels; memory in the shared memory file that is freed
  // with this parcel.
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
