/* Which bytes go from which member to which in the operations that only copy. */
#ifndef COMM_SHM_COPY_H
#define COMM_SHM_COPY_H
#include "kernels/kernels.h"
#include "comm/shm/world.h"

/* Copies to an output of the call, past the caches if the call writes so. */
static inline void ad_shm_copy_out(const shm_call *c, void *to, const void *from, size_t bytes) {
  (c->past ? ad_copy_past : ad_copy)(to, from, bytes);
}

/* A piece of a copy: bytes that go from one member to another in one run. */
typedef struct shm_segment {
  uint32_t source;
  const char *from;  // NULL: the bytes pass through the source's staging buffer
  int pulled;        // 1: `from` is an address in the source's process
  char *to;
  size_t bytes;
  uint64_t stream;  // its offset in the source's stream: the bytes that pass through the source's staging buffer
} shm_segment;
/* How many segments `destination` receives. */
uint32_t ad_shm_segments(const shm_world *world, const shm_call *c, uint32_t destination);
/* Gives segment number n of those that `destination` receives. */
shm_segment ad_shm_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n);
/* Copies bytes [start, start + bytes) of this member's stream to `to`. */
void ad_shm_copy_stream(const shm_call *c, uint64_t start, size_t bytes, char *to);
/* Bytes of the table that this member publishes with its call: counts of an all_to_all, messages of an exchange. */
size_t ad_shm_table_bytes(const ad_call *call);
/* Fills the table that this member publishes with its call. */
void ad_shm_fill_table(const shm_world *world, const shm_call *c, const shm_offer *offer, void *table);
/* Returns 1 if what members send is what the others receive; else 0, and adds words that say what differs. */
int ad_shm_tables_match(const shm_world *world, const shm_call *c, ad_text *words);

#endif
