/* A call: one collective as this rank asked for it, validated and laid out in bytes. What engines, the signature and
 * the flight recorder work on; nothing here communicates. */
#ifndef COMM_CALL_H
#define COMM_CALL_H
#include <stdint.h>
#include "addend/comm.h"

enum { AD_CALL_INLINE_WORDS = 64 };

typedef struct ad_call {
  ad_collective_op op;
  ad_dtype dtype, accumulate;
  ad_reduction reduction;
  size_t element;  // bytes of one
  size_t count;    // as the caller gave it
  const void *in;
  void *out;
  size_t in_bytes, out_bytes;     // that this rank's buffers hold; 0 where it has none
  uint32_t members, index, root;  // index: of this rank in the group
  ad_axes axes;                   // for messages
  const char *site;
  uint64_t number;  // of the rank's calls; the first is 1
  // With counts: the start of each block in elements, members + 1 of them. NULL: block i starts at i * count.
  size_t *in_starts, *out_starts;
  ad_message *messages;  // exchange
  size_t message_count;
  void *owned;   // where the arrays are, if they do not fit in `words`
  void *engine;  // the engine's own record of the call while it is under way
  // Not zero before they are filled, to be fast.
  ad_group_shape shape;
  uint64_t words[AD_CALL_INLINE_WORDS];
} ad_call;

/* Fills *out from what the caller wrote; `rank` of `size` calls. AD_INVALID says what is wrong with which field,
 * AD_MEMORY. Keeps no pointer to the collective's arrays. */
ad_status ad_call_prepare(const ad_collective *collective, int64_t rank, int64_t size, ad_call *out) AD_CHECKED;
void ad_call_release(ad_call *call);

const char *ad_op_name(ad_collective_op op);
static inline int ad_op_reduces(ad_collective_op op) { return op == AD_ALL_REDUCE || op == AD_REDUCE_SCATTER; }
/* Where block `i` of the value that is cut into blocks starts, in elements; i == members gives the end. */
static inline size_t ad_call_in_start(const ad_call *call, uint32_t i) {
  return call->in_starts ? call->in_starts[i] : i * call->count;
}
static inline size_t ad_call_out_start(const ad_call *call, uint32_t i) {
  return call->out_starts ? call->out_starts[i] : i * call->count;
}
/* The world rank of member number `index` of a group. */
int64_t ad_shape_rank(const ad_group_shape *shape, int64_t index);

#endif
