/* A call of this rank in flight: published to its group, matched with the others' calls, carried out, consumed. */
#ifndef COMM_SHM_CALL_H
#define COMM_SHM_CALL_H
#include "comm/shm/channel.h"

/* How a call is carried out. */
typedef enum shm_mode {
  SHM_UNMATCHED,  // not decided yet: some members have not published the call
  SHM_ALONE,      // all inputs are in the slots: each member computes its outputs alone
  SHM_CHUNKS,     // all buffers are in the file: members take chunks of the work
  SHM_ROUNDS,     // some buffers are outside the file: each member does its own part
  SHM_TRANSFER,   // not a collective: this struct is the first field of a shm_transfer
  SHM_AHEAD       // an old call of which some member still needs the slot; only in waits for a free slot
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
  // Each flag is 1 if at least one member's input is staged; input is pulled; output is not in the file; input is not
  // inline; or if at least one member published a table.
  uint8_t any_staged, any_pulled, any_elsewhere, any_not_inline, any_table;
  uint8_t past;       // 1: outputs are written by stores that bypass the caches
  uint32_t patience;  // how many more times this rank waits for the other members before it takes their chunks
  void *staging;
  // Only in a call in rounds. rounds: how many there are; own_rounds: in how many this member stages its input;
  // out_rounds: in how many it fetches results. next_in, next_reduce, next_out: the round that it stages, reduces, and
  // fetches or copies next.
  uint32_t rounds, own_rounds, out_rounds;
  uint32_t next_in, next_reduce, next_out;
  uint8_t started, finished;  // in a call in rounds: 1 if this member's part is started; 1 if it is finished
  uint32_t next_segment;      // the next segment to copy, counting only those that need no staging
  size_t reduced;             // if inputs are pulled: how many elements of this member's part are reduced
  int64_t gone_since;         // by ad_now(): when a source's process was first found to be gone; 0: none is gone
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
/* Returns the first member, from index `from` on, that has not yet done what this rank waits for in the call, or -1 if
 * there is none. */
int64_t ad_shm_missing(const shm_call *c, uint32_t from);

#endif
