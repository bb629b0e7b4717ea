/* The sums of leaves that a rank holds for one bucket: a stack of nodes of the aligned tree (kernels/nodes.h), the
 * earliest leaves lowest. What a leaf or a collective brings forms outside the stack, in memory that begins empty. When it
 * is there, it is put on top, and two nodes on top that are siblings become their sum. So the stack of n neighbouring
 * leaves has no more values than these leaves have nodes. Each value has a level of its own in one piece of memory.
 *
 * Values at the bottom may be set apart: they are sums over more ranks than those above them, which join them when the
 * ranks have added those up, too. */
#ifndef REDUCE_STACK_H
#define REDUCE_STACK_H
#include "addend/dtype.h"
#include "addend/status.h"
#include "kernels/nodes.h"

typedef struct ad_node_stack {
  int64_t leaves;   // leaves of the whole batch
  ad_dtype dtype;   // dtype of the values, in which they are also summed: f32 or f64
  size_t numel;     // elements of a value
  size_t levels;    // values for which there is memory
  char *memory;     // the levels, lowest first; NULL on backend dry
  size_t count;     // values in the stack
  size_t apart;     // values at the bottom that are set apart
  size_t arriving;  // values that are being brought and are not in the stack yet
  size_t at;        // level of the first of these, and its number in `node`; the others follow it
  ad_node node[AD_NODES_MAX];
} ad_node_stack;

/* Makes an empty stack, without memory, for bringing the leaves [first, first + count) one by one. */
ad_node_stack ad_stack_for(int64_t first, int64_t count, int64_t leaves, ad_dtype dtype, size_t numel);
/* Bytes of memory that the stack needs; level 0 alone has exactly the bytes of one value. */
size_t ad_stack_bytes(const ad_node_stack *stack);
/* Returns the memory of level number `at`, 0 being the lowest; NULL on backend dry. */
void *ad_stack_level(const ad_node_stack *stack, size_t at);
/* Returns how many levels are in use, by values in the stack or by those that are being brought. */
size_t ad_stack_used(const ad_node_stack *stack);
/* *out: the memory above the top, where the values of `node` form; NULL on backend dry. AD_TYPE if the node cannot be
 * brought next: its leaves must be those that follow the leaves in the stack, or any later ones if no value is above
 * those set apart (law 6, like adds to like). */
ad_status ad_stack_next(const ad_node_stack *stack, ad_node node, void **out) AD_CHECKED;
/* Returns 1 if the node is the sibling of the top, so that a sum that adds to the top's memory makes their parent. */
int ad_stack_adds(const ad_node_stack *stack, ad_node node);
/* Notes a node whose values a leaf or a collective brings: to the memory above the top or, of several nodes, above that
 * of the one before; or added to the top's if `adds` and ad_stack_adds. AD_TYPE as in ad_stack_next. */
ad_status ad_stack_place(ad_node_stack *stack, ad_node node, int adds) AD_CHECKED;
/* Notes that a collective replaces the values that are not set apart by the sums of the leaves [range.first, range.first
 * + range.count): in the memory of the lowest if these are one node, else in memory above the top, since a collective
 * cannot write several sums to where it reads. AD_TYPE unless the values are of some of these leaves, and these follow
 * those set apart. */
ad_status ad_stack_widen(ad_node_stack *stack, ad_node range) AD_CHECKED;
/* What became of the stack: the node on top is one that was brought, or the sum of the two that were on top. */
typedef enum ad_stack_change { AD_STACK_SETTLED, AD_STACK_BROUGHT, AD_STACK_SUMMED } ad_stack_change;
/* Does the next of what remains to be done when the values that were noted are there: sums the two nodes on top if they
 * are siblings, else puts the next value on top. AD_STACK_SETTLED: nothing was left. */
ad_stack_change ad_stack_settle(ad_node_stack *stack);
/* Returns AD_TYPE unless the values that are not set apart are the nodes of the leaves [first, first + count). */
ad_status ad_stack_expect(const ad_node_stack *stack, int64_t first, int64_t count) AD_CHECKED;

#endif
