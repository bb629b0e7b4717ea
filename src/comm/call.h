/* A call: one collective as this rank asked for it, validated and laid out in bytes. What engines, the signature and
 * the flight recorder work on; nothing here communicates. */
#ifndef COMM_CALL_H
#define COMM_CALL_H
#include <stdint.h>
#include "addend/comm.h"
#include "base/kernels.h"

enum { AD_CALL_INLINE_WORDS = 64 };

typedef struct ad_call {
  ad_collective_op op;
  ad_dtype dtype;
  ad_reducing reducing;  // of the operations that reduce
  int in_scale, out_scale;
  int past_caches;              // as the caller gave it
  size_t element, out_element;  // bytes of one in the inputs and the outputs
  size_t count;                 // as the caller gave it
  const void *in;
  void *out;
  size_t in_bytes, out_bytes;     // that this rank's buffers hold; 0 where it has none
  uint32_t members, index, root;  // index: of this rank in the group
  ad_axes axes;                   // for messages
  const char *site;
  uint64_t number;  // of the rank's calls; the first is 1
  // With counts: the start of each block in elements, members + 1 of them. NULL: block i starts at i * count.
  size_t *in_starts, *out_starts;
  // With segments: where each starts in the whole, segment_count + 1 of them; then for each member, where its part of
  // each starts in its block, as many again.
  size_t *segment_starts, *part_starts;
  size_t segment_count;  // 0: none
  uint64_t segments_hash;
  ad_message *messages;  // exchange
  size_t message_count;
  void *engine;  // the engine's own record of the call while it is under way
  // Kept from call to call: where the arrays are, if they do not fit in `words`.
  void *owned;
  size_t owned_bytes;
  // Not zero before they are filled, to be fast.
  ad_group_shape shape;
  uint64_t words[AD_CALL_INLINE_WORDS];
} ad_call;

/* Fills *out from what the caller wrote; `rank` of `size` calls. AD_INVALID says what is wrong with which field,
 * AD_MEMORY. Keeps no pointer to the collective's arrays. *out is zero, or was filled before: a call no larger than
 * that allocates nothing. */
ad_status ad_call_prepare(const ad_collective *collective, int64_t rank, int64_t size, ad_call *out) AD_CHECKED;
void ad_call_release(ad_call *call);  // gives back what prepare keeps from call to call

const char *ad_op_name(ad_collective_op op);
static inline int ad_op_reduces(ad_collective_op op) { return op == AD_ALL_REDUCE || op == AD_REDUCE_SCATTER; }
/* Where block `i` of the value that is cut into blocks starts, in elements; i == members gives the end. */
static inline size_t ad_call_in_start(const ad_call *call, uint32_t i) {
  return call->in_starts ? call->in_starts[i] : i * call->count;
}
static inline size_t ad_call_out_start(const ad_call *call, uint32_t i) {
  return call->out_starts ? call->out_starts[i] : i * call->count;
}
/* reduce_scatter and all_gather: the whole is cut into blocks, one of each member. A block may lie in the whole in
 * several runs, one of each segment. */
size_t ad_call_block(const ad_call *call, uint32_t member);  // its elements
/* Its part of segment s (of the whole, if there are no segments): how many elements, where in the block, where in the
 * whole. */
size_t ad_call_part(const ad_call *call, uint32_t member, size_t s, size_t *at, size_t *whole);
static inline size_t ad_call_parts(const ad_call *call) { return call->segment_count ? call->segment_count : 1; }
/* Of the elements that follow element `at` of the member's block, how many are neighbours in the whole too; *whole:
 * where they start there. 0 past the end. */
size_t ad_call_run(const ad_call *call, uint32_t member, size_t at, size_t *whole);
/* The world rank of member number `index` of a group. */
int64_t ad_shape_rank(const ad_group_shape *shape, int64_t index);

#endif
