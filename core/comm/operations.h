/* The collective operations, one record each. The checks of calls, the signature and the backends find out from the
 * record what to do; no other code of comm depends on which operation a call is. To add an operation: a value in
 * ad_collective_op (comm.h) and a record here. */
#ifndef COMM_OPERATIONS_H
#define COMM_OPERATIONS_H
#include "addend/comm.h"
#include "base/internal.h"

/* What a member's input or output consists of. */
typedef enum ad_buffer {
  AD_BUFFER_NONE,
  AD_BUFFER_VALUE,   /* the full value, of `count` elements */
  AD_BUFFER_BLOCK,   /* the member's own block; all members know the sizes of all blocks (`count` or `counts`) */
  AD_BUFFER_BLOCKS,  /* the blocks of all members, one after another */
  AD_BUFFER_PAIRS,   /* a block for each member, or from each member; only sender and receiver know a block's size */
  AD_BUFFER_MESSAGES /* the messages that `messages` lists, instead of `in` and `out` */
} ad_buffer;

/* One operation. An operation that copies gives member `to` a piece of each input (ad_call_piece in call.h). An
 * operation that reduces combines the inputs element by element: from full values every member gets the full value,
 * from blocks every member gets its own block. The backends carry out every record that keeps two rules: an operation
 * that reduces has no root, and if one buffer consists of pairs or messages, so does the other. */
typedef struct ad_comm_operation {
  const char *name;
  ad_buffer in, out;
  uint8_t in_on_root, out_on_root; /* 1: only the root has an input; only the root has an output */
  uint8_t reduces;
  uint8_t takes_segments; /* 1: `segments` may define the blocks; one of `in` and `out` is BLOCK, the other BLOCKS */
} ad_comm_operation;

/* X(value of ad_collective_op, fields of the record) */
/* clang-format off */
#define AD_OPERATION_LIST(X)                                                                                           \
  X(AD_ALL_REDUCE, .name = "all_reduce", .in = AD_BUFFER_VALUE, .out = AD_BUFFER_VALUE, .reduces = 1)                    \
  X(AD_REDUCE_SCATTER, .name = "reduce_scatter", .in = AD_BUFFER_BLOCKS, .out = AD_BUFFER_BLOCK, .reduces = 1,           \
    .takes_segments = 1)                                                                                               \
  X(AD_ALL_GATHER, .name = "all_gather", .in = AD_BUFFER_BLOCK, .out = AD_BUFFER_BLOCKS, .takes_segments = 1)            \
  X(AD_ALL_TO_ALL, .name = "all_to_all", .in = AD_BUFFER_PAIRS, .out = AD_BUFFER_PAIRS)                                  \
  X(AD_BROADCAST, .name = "broadcast", .in = AD_BUFFER_VALUE, .out = AD_BUFFER_VALUE, .in_on_root = 1)                   \
  X(AD_BARRIER, .name = "barrier")                                                                                     \
  X(AD_EXCHANGE, .name = "exchange", .in = AD_BUFFER_MESSAGES, .out = AD_BUFFER_MESSAGES)
/* clang-format on */

/* The values of ad_call.op for the two sides of a transfer; they follow those of the collectives. Their records have
 * only a name. */
enum { AD_OP_SEND = AD_EXCHANGE + 1, AD_OP_RECEIVE };
static inline int ad_op_is_transfer(ad_collective_op op) { return (int)op == AD_OP_SEND || (int)op == AD_OP_RECEIVE; }

/* Returns the operation's record, or NULL if there is no such operation. */
const ad_comm_operation *ad_comm_operation_of(ad_collective_op op);
AD_INTERNAL const char *ad_op_name(ad_collective_op op); /* "unknown" if there is no such operation */

/* ---- what follows from a record ---- */

static inline int ad_has_root(const ad_comm_operation *o) { return o->in_on_root || o->out_on_root; }
static inline int ad_is_of_blocks(ad_buffer b) { return b == AD_BUFFER_BLOCK || b == AD_BUFFER_BLOCKS; }
/* Returns 1 if the operation has blocks, whose sizes `counts` may give. */
static inline int ad_takes_counts(const ad_comm_operation *o) {
  return ad_is_of_blocks(o->in) || ad_is_of_blocks(o->out) || o->in == AD_BUFFER_PAIRS;
}
/* Returns 1 if only sender and receiver know the size of a block. Then `receive_counts` accompanies `counts`, and
 * the counts of both members must be compared. */
static inline int ad_is_of_pairs(const ad_comm_operation *o) { return o->in == AD_BUFFER_PAIRS; }
static inline int ad_is_of_messages(const ad_comm_operation *o) { return o->in == AD_BUFFER_MESSAGES; }
/* Returns 1 if no value moves between the call's `in` and `out`: only the operation of the members' calls must
 * match. */
static inline int ad_has_no_value(const ad_comm_operation *o) {
  return o->in == AD_BUFFER_NONE || ad_is_of_messages(o);
}
/* Returns 1 if the caller may set `adds` (results are added to the output): each element of the reduction's result
 * is written on one member only. */
static inline int ad_may_add(const ad_comm_operation *o) { return o->reduces && o->out == AD_BUFFER_BLOCK; }
/* Returns 1 if every member gets the same full value. It can then be made in slices: each member makes one slice (sums
 * it, or gets it from the root) and gives it to all. */
static inline int ad_is_sliced(const ad_comm_operation *o) {
  return o->in == AD_BUFFER_VALUE && o->out == AD_BUFFER_VALUE && !o->out_on_root;
}
/* Returns 1 if each member gives all members the same values: its slice of the full value, or its block. */
static inline int ad_gives_all_the_same(const ad_comm_operation *o) {
  return ad_is_sliced(o) || (o->in == AD_BUFFER_BLOCK && o->out == AD_BUFFER_BLOCKS && !o->out_on_root);
}
/* How `in` and `out` may overlap. */
typedef enum ad_overlap {
  AD_APART,       /* they may not overlap */
  AD_SAME_BUFFER, /* they may be the same buffer */
  AD_BLOCK_INSIDE /* the smaller buffer may be this rank's block inside the larger buffer */
} ad_overlap;
static inline ad_overlap ad_may_overlap(const ad_comm_operation *o) {
  if (ad_is_of_blocks(o->in) && ad_is_of_blocks(o->out) && o->in != o->out) return AD_BLOCK_INSIDE;
  return o->in == AD_BUFFER_VALUE && o->out == AD_BUFFER_VALUE ? AD_SAME_BUFFER : AD_APART;
}

#endif
