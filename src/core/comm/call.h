/* A call: one collective or one side of a transfer as this rank asked for it, validated, with all sizes in bytes.
 * Engines, the signature and the flight recorder work on calls; nothing here communicates. */
#ifndef COMM_CALL_H
#define COMM_CALL_H
#include <stdint.h>
#include "addend/comm.h"
#include "kernels/kernels.h"
#include "base/internal.h"
#include "mesh/group.h"

enum { AD_CALL_INLINE_WORDS = 64 };
/* What a transfer has where a collective has its operation. */
enum { AD_OP_SEND = AD_EXCHANGE + 1, AD_OP_RECEIVE };

typedef struct ad_call {
  ad_collective_op op;
  ad_dtype dtype;
  ad_reducing reducing;  // of the operations that reduce
  int in_scale, out_scale;
  int past_caches;              // the hint of hint.h; comm.c sets it
  size_t element, out_element;  // bytes of one in the inputs and the outputs
  size_t count;                 // as the caller gave it
  const void *in;
  void *out;
  size_t in_bytes, out_bytes;     // of this rank's buffers; 0 where it has none
  uint32_t members, index, root;  // index: of this rank in the group
  ad_axes axes;                   // for messages
  const char *site;
  uint64_t number;  // of the rank's calls; the first is 1
  // With counts: the start of each block in elements, members + 1 of them. NULL: block i starts at i * count.
  size_t *in_starts, *out_starts;
  // With segments: segment_starts has where each starts in the whole, segment_count + 1 numbers. part_starts has, for
  // one member after the other, where its part of each segment starts in its block, again segment_count + 1 numbers
  // each.
  size_t *segment_starts, *part_starts;
  size_t segment_count;  // 0: none
  uint64_t segments_hash;
  ad_message *messages;  // exchange: sends before receives, those of a kind by peer
  size_t message_count;
  // A transfer's other side: a rank of the world or AD_ANY_SOURCE; `source` is set by the engine when a receive is
  // complete: the rank of the world that sent.
  int64_t peer, tag, source;
  ad_ranks *ranks;  // the list that the call runs on; NULL: none
  void *engine;     // the engine's own record of the call while it is under way; else NULL
  // The arrays above lie in `words`, or here if they do not fit. Kept for the next call in this place.
  void *owned;
  size_t owned_bytes;
  // ad_call_prepare does not clear these two before it fills them, to save time.
  ad_group_shape shape;
  uint64_t words[AD_CALL_INLINE_WORDS];
} ad_call;

/* What passes the seam AD_SEAM_CALL. */
typedef struct ad_call_passing {
  const ad_comm *comm;
  const ad_call *call;
} ad_call_passing;

/* Fills *out from what the caller, rank `rank` of `size`, wrote. *out is zero, or a call that was filled before: its
 * memory is used again, so that a call no larger than an earlier one allocates nothing. Keeps no pointer to the
 * collective's arrays. AD_INVALID says which field is wrong and why; AD_MEMORY. */
ad_status ad_call_prepare(const ad_collective *collective, int64_t rank, int64_t size, ad_call *out) AD_CHECKED;
/* The same of one side of a transfer. */
ad_status ad_call_prepare_transfer(const ad_transfer *transfer, int64_t rank, int64_t size, ad_call *out) AD_CHECKED;
void ad_call_release(ad_call *call);  // frees the memory that prepare keeps from call to call

AD_INTERNAL const char *ad_op_name(ad_collective_op op);
const char *ad_reduction_name(ad_reduction reduction);  // "sum", "bit_and", ...; "unknown"
static inline int ad_op_reduces(ad_collective_op op) { return op == AD_ALL_REDUCE || op == AD_REDUCE_SCATTER; }
static inline int ad_op_is_transfer(ad_collective_op op) { return (int)op >= AD_OP_SEND; }
/* Where block `i` starts in the input (or output) that consists of blocks, in elements; i == members gives the end. */
static inline size_t ad_call_in_start(const ad_call *call, uint32_t i) {
  return call->in_starts ? call->in_starts[i] : i * call->count;
}
static inline size_t ad_call_out_start(const ad_call *call, uint32_t i) {
  return call->out_starts ? call->out_starts[i] : i * call->count;
}
/* In a reduce_scatter or an all_gather the whole is cut into blocks, one for each member. With segments a block is not
 * one run of the whole but several, one of each segment. These count in elements. */
/* The size of a member's block. */
size_t ad_call_block(const ad_call *call, uint32_t member);
/* The size of a member's part of segment `s` (without segments: of the whole); *at: where the part starts in the
 * member's block, *whole: where it starts in the whole. */
size_t ad_call_part(const ad_call *call, uint32_t member, size_t s, size_t *at, size_t *whole);
static inline size_t ad_call_parts(const ad_call *call) { return call->segment_count ? call->segment_count : 1; }
/* The run of a member's block that starts at its element `at`: how many elements from there on are neighbours in the
 * whole too. *whole: where the run starts there. 0 at the block's end and beyond. */
size_t ad_call_run(const ad_call *call, uint32_t member, size_t at, size_t *whole);
/* Of a group, given by its shape: how many members it has; the world rank of member number `index`; whether two have
 * the same ranks in the same order. */
int64_t ad_shape_members(const ad_group_shape *shape);
int64_t ad_shape_rank(const ad_group_shape *shape, int64_t index);
static inline int ad_shape_same(const ad_group_shape *a, const ad_group_shape *b) {
  if (a->base != b->base || a->count != b->count || a->head != b->head || a->gap != b->gap || a->list != b->list)
    return 0;
  for (int k = 0; k < a->count; k++)
    if (a->size[k] != b->size[k] || a->stride[k] != b->stride[k]) return 0;
  return 1;
}

#endif
