/* The sums of leaves that a rank holds for one bucket: a stack of nodes of the aligned tree (kernels/nodes.h), the
 * earliest leaves lowest. A leaf's gradients form above the top, in memory that begins empty; when the leaf is pushed,
 * two nodes on top that are siblings become their sum. So the stack of n neighbouring leaves has no more values than
 * these leaves have nodes. Each value has a level of its own in one piece of memory.
 *
 * Values at the bottom may be set apart: they are sums over more ranks than those above them, which join them when the
 * ranks have added those up, too. */
#ifndef REDUCE_STACK_H
#define REDUCE_STACK_H
#include "addend/dtype.h"
#include "addend/status.h"
#include "kernels/nodes.h"

typedef struct ad_node_stack {
  int64_t leaves;  // leaves of the whole batch
  ad_dtype dtype;  // dtype of the values, in which they are also summed: f32 or f64
  size_t numel;    // elements of a value
  size_t levels;   // values for which there is memory
  char *memory;    // the levels, lowest first; NULL on backend dry
  size_t count;    // values in the stack
  size_t apart;    // values at the bottom that are set apart
  ad_node node[AD_NODES_MAX];
} ad_node_stack;

/* Makes an empty stack, without memory, for pushing the leaves [first, first + count) one by one. */
ad_node_stack ad_stack_for(int64_t first, int64_t count, int64_t leaves, ad_dtype dtype, size_t numel);
/* Bytes of memory that the stack needs; level 0 alone has exactly the bytes of one value. */
size_t ad_stack_bytes(const ad_node_stack *stack);
/* Returns the memory of value number `at`, 0 being the lowest; NULL on backend dry. */
void *ad_stack_level(const ad_node_stack *stack, size_t at);
/* *out: the memory above the top, where the values of `node` form; NULL on backend dry. AD_TYPE if the node cannot be
 * pushed next: its leaves must be those that follow the leaves in the stack, or any later ones if no value is above
 * those set apart (law 6, like adds to like). */
ad_status ad_stack_next(const ad_node_stack *stack, ad_node node, void **out) AD_CHECKED;
/* Pushes the node whose values are in that memory, and sums siblings as long as two are on top. AD_TYPE as above. */
ad_status ad_stack_push(ad_node_stack *stack, ad_node node) AD_CHECKED;
/* Returns 1 if the node is the sibling of the top, so that a sum that adds to the top's memory makes their parent. */
int ad_stack_adds(const ad_node_stack *stack, ad_node node);
/* Notes a node whose values a collective is about to bring: added to the top if `adds`, which needs ad_stack_adds; else
 * in the memory above it, which becomes the top. When the collective is through, ad_stack_merge sums siblings. AD_TYPE
 * as in ad_stack_next. */
ad_status ad_stack_place(ad_node_stack *stack, ad_node node, int adds) AD_CHECKED;
void ad_stack_merge(ad_node_stack *stack);
/* Notes that a collective is about to replace the values that are not set apart by the sum of `node`, in the memory of
 * the lowest, and ends the setting apart. AD_TYPE unless their leaves are some of the node's, and these follow those of
 * the values set apart. */
ad_status ad_stack_widen(ad_node_stack *stack, ad_node node) AD_CHECKED;
/* Returns AD_TYPE unless the values that are not set apart are the nodes of the leaves [first, first + count). */
ad_status ad_stack_expect(const ad_node_stack *stack, int64_t first, int64_t count) AD_CHECKED;

#endif
