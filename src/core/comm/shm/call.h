/* A call under way, from published over matched to consumed. */
#ifndef COMM_SHM_CALL_H
#define COMM_SHM_CALL_H
#include "comm/shm/channel.h"

/* How a call is carried out. */
typedef enum shm_mode {
  SHM_UNMATCHED,  // not decided: not all members have published it
  SHM_ALONE,      // all inputs are in the slots: each member computes its outputs alone
  SHM_CHUNKS,     // all buffers are in the file: members take chunks of the work
  SHM_ROUNDS,     // some buffers are not: each member does its own part
  SHM_TRANSFER,   // no collective: the start of a shm_transfer
  SHM_AHEAD       // no call under way: an old one, which a member must consume before its slot can be used again
} shm_mode;

/* A call under way. */
typedef struct shm_call {
  ad_call *call;
  shm_channel *channel;
  uint64_t sequence;
  struct shm_call *next;  // of those under way, in order
  uint32_t seen;          // members whose publication was seen
  uint32_t complete;      // members whose part was seen done
  shm_mode mode;
  // 1: some member's input is staged, or pulled; some output is not in the file; some input is not inline; some member
  // has a table.
  uint8_t any_staged, any_pulled, any_elsewhere, any_not_inline, any_table;
  uint8_t past;       // outputs are written past the caches
  uint32_t patience;  // how often this rank still looks whether the others are done before it takes their chunks
  void *staging;
  // In rounds: how many the call has, how many of them this member stages, and in how many it fetches results from
  // others; then the next round of staging, of reducing, and of fetching or copying.
  uint32_t rounds, own_rounds, out_rounds;
  uint32_t next_in, next_reduce, next_out;
  uint8_t started, finished;  // in rounds: this member's part
  uint32_t next_segment;      // of the copies that need no staging
  size_t reduced;             // elements of the own part that are reduced, where inputs are pulled
  int64_t gone_since;         // by ad_now(): when a source's process was first found to be gone; 0: it was not
} shm_call;

static inline shm_slot *ad_shm_slot(const shm_call *c, uint32_t member) {
  return ad_shm_slot_at(c->channel, member, c->sequence);
}

/* Writes the call into its slot and publishes it. */
ad_status ad_shm_publish(shm_world *world, shm_call *c) AD_CHECKED;
/* 1 when all members published matching calls; the mode is then set. A mismatch is raised. */
int ad_shm_match(shm_world *world, shm_call *c);
/* This member needs nothing of the call any more. */
void ad_shm_consume(shm_call *c);
/* The first member, from number `from` on, that has not yet done what this rank waits for in the call; -1: none. */
int64_t ad_shm_lacking(const shm_call *c, uint32_t from);

#endif
