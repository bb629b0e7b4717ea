/* For operations that only copy: finds which bytes are copied from which member to which member. */
#ifndef COMM_SHM_COPY_H
#define COMM_SHM_COPY_H
#include "kernels/kernels.h"
#include "comm/shm/world.h"

/* Copies to an output of the call; bypasses the caches if c->past is 1. */
static inline void ad_shm_copy_out(const shm_call *c, void *to, const void *from, size_t bytes) {
  (c->past ? ad_copy_past : ad_copy)(to, from, bytes);
}

/* A piece of a copy: contiguous bytes that one member sends to one other member. */
typedef struct shm_segment {
  uint32_t source;
  const char *from;  // NULL: the bytes pass through the source's staging buffer
  int pulled;        // 1: `from` is an address in the source's process
  char *to;
  size_t bytes;
  uint64_t stream;  // offset in the source's stream (all bytes that pass through the source's staging buffer, in order)
} shm_segment;
/* ad_shm_pieces returns the number of pieces (ad_call_piece) that `destination` receives, ad_shm_piece the n-th of
 * these pieces, which may be empty. Not for messages. */
uint32_t ad_shm_pieces(const ad_call *call, uint32_t destination);
ad_comm_piece ad_shm_piece(const ad_call *call, uint32_t destination, uint32_t n);
/* Returns how many segments `destination` receives: a segment for each piece, or for each message. */
uint32_t ad_shm_segments(const shm_world *world, const shm_call *c, uint32_t destination);
/* Returns the n-th segment that `destination` receives. */
shm_segment ad_shm_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n);
/* Copies bytes [start, start + bytes) of this member's stream to `to`. */
void ad_shm_copy_stream(const shm_call *c, uint64_t start, size_t bytes, char *to);
/* Returns the size in bytes of the table that this member publishes with its call: counts of an all_to_all, messages of
 * an exchange. */
size_t ad_shm_table_bytes(const ad_call *call);
/* Fills the table that this member publishes with its call. */
void ad_shm_fill_table(const shm_world *world, const shm_call *c, const shm_offer *offer, void *table);
/* Returns 1 if all members' tables agree on what is sent and received; otherwise returns 0 and appends the difference
 * to `words`. */
int ad_shm_tables_match(const shm_world *world, const shm_call *c, ad_text *words);

#endif
