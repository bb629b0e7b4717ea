/* The sums of leaves that a rank has for one bucket: a stack whose entries are nodes of the aligned tree
 * (kernels/nodes.h), with the lowest leaves at the bottom. Each entry has a value (the sum of its leaves' gradients) in
 * its own level of one piece of memory.
 *
 * A new value, of a leaf or from a collective, is first written above the top: it is arriving. Then it is settled: it
 * becomes the top, and as long as the two nodes on top are siblings, their sum replaces them. So a stack for n
 * consecutive leaves never has more entries than these leaves have nodes.
 *
 * Entries at the bottom may be set apart: they are sums over more ranks than the entries above them. They are added to
 * those entries only after collectives have summed those entries over the same ranks. */
#ifndef REDUCE_STACK_H
#define REDUCE_STACK_H
#include "addend/dtype.h"
#include "addend/status.h"
#include "kernels/nodes.h"

typedef struct ad_node_stack {
  int64_t leaves;   // number of leaves of the batch
  ad_dtype dtype;   // dtype of the values, in which they are also summed: f32 or f64
  size_t numel;     // number of elements of a value
  size_t levels;    // number of values for which there is memory
  char *memory;     // the levels, lowest first; NULL on backend dry
  size_t count;     // number of entries in the stack
  size_t apart;     // number of entries at the bottom that are set apart
  size_t arriving;  // number of values that are arriving and are not in the stack yet
  // level of the first arriving value, which is also the index of its node in `node`; the others follow it
  size_t at;
  ad_node node[AD_NODES_MAX];
} ad_node_stack;

/* Bytes of memory that the stack needs; level 0 alone has exactly the bytes of one value. */
size_t ad_stack_bytes(const ad_node_stack *stack);
/* Returns the memory of level number `at`, 0 being the lowest; NULL on backend dry. */
void *ad_stack_level(const ad_node_stack *stack, size_t at);
/* Returns how many levels are in use by entries of the stack and by arriving values. */
size_t ad_stack_used(const ad_node_stack *stack);
/* *out: the memory above the top, for the value of `node`; NULL on backend dry. AD_TYPE if `node` must not arrive next
 * (law 6, like adds to like): its leaves must directly follow the last leaves of the stack. If all entries are set
 * apart, they may also begin later. */
ad_status ad_stack_next(const ad_node_stack *stack, ad_node node, void **out) AD_CHECKED;
/* Returns 1 if `node` is the sibling of the top, so that a collective may add its value to the top's memory, which then
 * has the value of their parent; else 0. */
int ad_stack_adds(const ad_node_stack *stack, ad_node node);
/* Records that the value of `node` is arriving. It is written above the top and above values that are arriving already.
 * If `adds` is 1 and ad_stack_adds returns 1, it is added to the top's value instead. AD_TYPE as in ad_stack_next. */
ad_status ad_stack_place(ad_node_stack *stack, ad_node node, int adds) AD_CHECKED;
/* Records that a collective sums the entries that are not set apart over further ranks: sums of the leaves
 * [range.first, range.first + range.count) replace them. If these leaves are one node, the result is written over the
 * lowest of these entries; otherwise above the top, because a collective cannot write several sums over its input.
 * AD_TYPE unless these leaves include all leaves of the replaced entries, and directly follow the leaves of the entries
 * set apart. */
ad_status ad_stack_widen(ad_node_stack *stack, ad_node range) AD_CHECKED;
/* What ad_stack_settle did: nothing was left to do; an arriving value became the top; the two nodes on top became their
 * sum. */
typedef enum ad_stack_change { AD_STACK_SETTLED, AD_STACK_BROUGHT, AD_STACK_SUMMED } ad_stack_change;
/* Call when the arriving values are in their memory, again until it returns AD_STACK_SETTLED. Each call does one thing:
 * if the two nodes on top are siblings, replaces them by their sum; otherwise puts the next arriving value on top. */
ad_stack_change ad_stack_settle(ad_node_stack *stack);
/* Returns AD_TYPE unless the entries that are not set apart are exactly the nodes of the leaves [first, first +
 * count). */
ad_status ad_stack_expect(const ad_node_stack *stack, int64_t first, int64_t count) AD_CHECKED;

#endif
