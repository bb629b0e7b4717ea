/* A call: one collective, or one side of a transfer, that this rank requested. A call was validated, and its sizes
 * are in bytes. Backends, the signature and the flight recorder use calls; nothing here communicates. */
#ifndef COMM_CALL_H
#define COMM_CALL_H
#include <stdint.h>
#include "addend/comm.h"
#include "kernels/kernels.h"
#include "base/internal.h"
#include "comm/operations.h"
#include "mesh/group.h"

enum {
  AD_CALL_INLINE_WORDS = 64,
  AD_CALL_NODES_MAX = 1024  // the most nodes that the members of a call with leaf ranges contribute together
};

/* One result of a call with leaf ranges: the sum of `count` nodes, beginning with index `first`, of the list of all
 * nodes that members contribute. */
typedef struct ad_call_result {
  uint32_t first, count;
} ad_call_result;

typedef struct ad_call {
  ad_collective_op op;
  const ad_comm_operation *operation;  // the record of `op`
  ad_dtype dtype;
  ad_reducing reducing;  // set only if the operation reduces
  int in_scale, out_scale;
  int past_caches;              // 1: outputs should bypass the caches (see hint.h); comm.c sets this field
  size_t element, out_element;  // bytes of one element in the inputs and in the outputs
  size_t count;                 // the caller's count; with segments: of the full value; 0: the caller gave counts
  const void *in;
  void *out;
  size_t in_bytes, out_bytes;     // sizes of this rank's buffers; 0: this rank has no such buffer
  uint32_t members, index, root;  // group size; indices in the group of this rank and of the root
  ad_axes axes;                   // the group's axes, for error messages
  const char *site;
  uint64_t number;  // counts this rank's calls from 1
  // The offset of each block in elements (members + 1 offsets), if the caller gave counts. NULL: block i starts at i *
  // count.
  size_t *in_starts, *out_starts;
  // segment_starts: the offset of each segment in the full value (segment_count + 1 offsets). part_starts: for each
  // member, the offset of its part of each segment in its block (segment_count + 1 offsets a member, one member after
  // the other).
  size_t *segment_starts, *part_starts;
  size_t segment_count;  // 0: the full value is not divided into segments
  uint64_t segments_hash;
  // Only in calls with leaf ranges (else NULL and 0). The nodes that all members contribute are in one list, member
  // after member. node_starts: for each member, the index of its first node in this list (members + 1 indices).
  // node_leaves: for each node, how many leaves it contains.
  const uint32_t *node_starts, *node_leaves;
  const ad_call_result *results;
  uint32_t result_count;
  uint64_t ranges_hash;
  ad_message *messages;  // the messages of an exchange: sends first, then receives, each sorted by peer
  size_t message_count;
  // The other side of a transfer: a rank of the world, or AD_ANY_SOURCE. When a receive is complete, the backend sets
  // `source` to the world rank of the sender.
  int64_t peer, tag, source;
  ad_ranks *ranks;  // the list of ranks that is the call's group; NULL: a group of a mesh
  void *backend;    // the backend's record of the call while it is in flight; else NULL
  // Heap memory for the arrays above if they do not fit into `words`; kept for the next call that uses this struct.
  void *owned;
  size_t owned_bytes;
  void *owned_nodes;  // heap memory for the arrays of leaf ranges; also kept for the next call
  size_t owned_nodes_bytes;
  // To save time, ad_call_prepare fills `shape` and `words` without clearing them first.
  ad_group_shape shape;
  uint64_t words[AD_CALL_INLINE_WORDS];
} ad_call;

/* The value that the injection point AD_INJECT_CALL (base/injection.h) passes: a call that is about to be posted. */
typedef struct ad_call_passing {
  const ad_comm *comm;
  const ad_call *call;
} ad_call_passing;

/* Validates the collective of rank `rank` of `size`, and fills *out. *out must be zero, or a call that was filled
 * before: its memory is used again, so a call no larger than an earlier one allocates nothing. Keeps no pointer to the
 * collective's arrays. The message of AD_INVALID says which field is wrong and why; the other error is AD_MEMORY. */
ad_status ad_call_prepare(const ad_collective *collective, int64_t rank, int64_t size, ad_call *out) AD_CHECKED;
/* Does the same as ad_call_prepare for one side of a transfer. */
ad_status ad_call_prepare_transfer(const ad_transfer *transfer, int64_t rank, int64_t size, ad_call *out) AD_CHECKED;
void ad_call_release(ad_call *call);  // frees the memory that *call keeps for further use

/* Fails with AD_INVALID and a message that begins with the call's site and operation. */
#define AD_REFUSE_CALL(call, format, ...) \
  ad_fail(AD_INVALID, "%s: in `%s`, " format, (call)->site, (call)->operation->name, __VA_ARGS__)

const char *ad_reduction_name(ad_reduction reduction);  // "sum", "bit_and", ...; "unknown" for other values
/* ad_call_in_start returns the offset, in elements, of block `i` in an input that consists of blocks;
 * ad_call_out_start does so for an output. With i == members they return the end of the last block. */
static inline size_t ad_call_in_start(const ad_call *call, uint32_t i) {
  return call->in_starts ? call->in_starts[i] : i * call->count;
}
static inline size_t ad_call_out_start(const ad_call *call, uint32_t i) {
  return call->out_starts ? call->out_starts[i] : i * call->count;
}
/* Returns the size of the member's block, in elements. If the full value consists of segments, a member's block holds
 * one part of each segment, in their order. */
size_t ad_call_block(const ad_call *call, uint32_t member);
/* Returns how many elements of segment `s` (of the full value, if there are no segments) the member's block has. *at
 * is set to the offset of these elements in the member's block, *whole to their offset in the full value. */
size_t ad_call_part(const ad_call *call, uint32_t member, size_t s, size_t *at, size_t *whole);
static inline size_t ad_call_parts(const ad_call *call) { return call->segment_count ? call->segment_count : 1; }
/* Returns how many elements of a member's block, from element `at` on, are contiguous in the full value too; 0 if
 * `at` is the end of the block or beyond it. *whole is set to the offset of these elements in the full value. */
size_t ad_call_run(const ad_call *call, uint32_t member, size_t at, size_t *whole);
/* ad_call_addends returns how many values the member contributes, and ad_call_results how many results each member
 * gets. Both are 1, except in calls with leaf ranges. */
static inline uint32_t ad_call_addends(const ad_call *call, uint32_t member) {
  return call->results ? call->node_starts[member + 1] - call->node_starts[member] : 1;
}
static inline uint32_t ad_call_results(const ad_call *call) { return call->results ? call->result_count : 1; }
/* ad_call_addend returns the number of elements of each value that a member contributes to a reducing operation;
 * ad_call_result_size returns the number of elements of each result that the member gets. */
size_t ad_call_addend(const ad_call *call);
static inline size_t ad_call_result_size(const ad_call *call, uint32_t member) {
  return ad_is_sliced(call->operation) ? call->count : ad_call_block(call, member);
}
/* The data that one member gets from another member in an operation that copies: `count` elements, which begin with
 * element `in` of the sender's input and with element `out` of the receiver's output. */
typedef struct ad_comm_piece {
  size_t in, out, count;
} ad_comm_piece;
/* Returns the piece that member `to` gets from member `from`: of segment `s` of the full value, or of the full value
 * if it has no segments. `count` is 0 if `to` gets nothing. Not for messages. If blocks are for pairs of members, this
 * rank knows only the sizes of its own: this rank must then be `from` or `to`, and the piece's offset in the other
 * member's buffer is meaningless. */
ad_comm_piece ad_call_piece(const ad_call *call, uint32_t from, uint32_t to, size_t s);
/* Functions on groups that are given by their shape. ad_shape_members returns the number of members, ad_shape_rank
 * the world rank of the member with this index, and ad_shape_same 1 if two groups have the same ranks in the same
 * order. */
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
