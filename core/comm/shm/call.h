/* A call of this rank in flight: it is published to its group, matched with the other members' calls, carried out,
 * and consumed. */
#ifndef COMM_SHM_CALL_H
#define COMM_SHM_CALL_H
#include "comm/shm/channel.h"

/* The ways in which a call is carried out. */
typedef enum shm_mode {
  SHM_UNMATCHED,  // not decided yet: some members have not published the call
  SHM_ALONE,      // all inputs are in the slots: each member computes its outputs alone
  SHM_CHUNKS,     // all buffers are in the shared file: members take chunks of the work
  SHM_ROUNDS,     // some buffers are outside the shared file: each member does its own part
  SHM_TRANSFER,   // not a collective: this struct is the first field of a shm_transfer
  SHM_AHEAD       // an old call whose slot some member still needs; only in waits for a free slot
} shm_mode;

/* A call in flight. */
typedef struct shm_call {
  ad_call *call;
  shm_channel *channel;
  uint64_t sequence;
  struct shm_call *next;  // the next call in flight, in the order of posting
  uint32_t seen;          // how many members were seen to have published the call
  uint32_t complete;      // how many members were seen to have done their part
  shm_mode mode;
  // Each flag is 1 if at least one member has a staged input; a pulled input; an output that is not in the shared
  // memory file; an input that is not inline; a table.
  uint8_t any_staged, any_pulled, any_elsewhere, any_not_inline, any_table;
  uint8_t past;       // 1: outputs are written by stores that bypass the caches
  uint32_t patience;  // how many more times this rank waits for other members before it works on their chunks
  void *staging;
  // Only in a call in rounds. rounds: the number of rounds; own_rounds: rounds in which this member stages its input;
  // out_rounds: rounds in which it fetches results. next_in, next_reduce, next_out: the next round in which it stages,
  // in which it reduces, and in which it fetches or copies.
  uint32_t rounds, own_rounds, out_rounds;
  uint32_t next_in, next_reduce, next_out;
  uint8_t started, finished;  // in a call in rounds: 1 if this member's part is started; 1 if it is finished
  uint32_t next_segment;      // the next segment to copy, counting only those that need no staging
  size_t reduced;             // if inputs are pulled: number of elements of this member's part that are reduced so far
  int64_t gone_since;         // by ad_now(): when the process of a source was first found to have ended; 0: none has
} shm_call;

static inline shm_slot *ad_shm_slot(const shm_call *c, uint32_t member) {
  return ad_shm_slot_at(c->channel, member, c->sequence);
}

/* Writes the call into its slot and publishes it. */
ad_status ad_shm_publish(shm_world *world, shm_call *c) AD_CHECKED;
/* Returns 1 when all members have published matching calls; the mode is then set. A mismatch becomes the world's error.
 */
int ad_shm_match(shm_world *world, shm_call *c);
/* Signals to the other members that this member needs nothing more from the call. */
void ad_shm_consume(shm_call *c);
/* Returns the first member, from index `from` on, for which this rank still waits in the call, or -1 if there is
 * none. */
int64_t ad_shm_missing(const shm_call *c, uint32_t from);

#endif
