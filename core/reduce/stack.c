#include "reduce/stack.h"

#include <string.h>
#include "base/error.h"
#include "base/text.h"
#include "kernels/kernels.h"

static size_t value_bytes(const ad_node_stack *stack) { return stack->numel * ad_dtype_size(stack->dtype); }

/* Levels lie one after another without gaps, because collectives that sum leaves read and write several values in this
 * form. */
size_t ad_stack_bytes(const ad_node_stack *stack) { return stack->levels * value_bytes(stack); }

void *ad_stack_level(const ad_node_stack *stack, size_t at) {
  return stack->memory ? stack->memory + at * value_bytes(stack) : NULL;
}

size_t ad_stack_used(const ad_node_stack *stack) {
  return stack->arriving ? stack->at + stack->arriving : stack->count;
}

/* Checks law 6 (like adds to like): in a sum each leaf occurs once, and leaves are in ascending order, so `node` must
 * begin where the last node of the stack ends. `leaps` 1: `node` may also begin later. */
static ad_status check_follows(const ad_node_stack *stack, ad_node node, int leaps) {
  ad_node before = {leaps ? 0 : node.first, 0};
  if (stack->arriving)
    before = stack->node[stack->at + stack->arriving - 1];
  else if (stack->count)
    before = stack->node[stack->count - 1];
  int64_t end = node.first + node.count, expected = before.first + before.count;
  if ((leaps ? node.first >= expected : node.first == expected) && node.count > 0 && end <= stack->leaves) return AD_OK;
  return ad_fail(AD_TYPE,
                 "the sum of leaves [%lld, %lld) cannot follow that of leaves [%lld, %lld) of %lld: each leaf must be "
                 "in the sum once, in ascending order",
                 (long long)node.first, (long long)end, (long long)before.first, (long long)expected,
                 (long long)stack->leaves);
}

static ad_status check_room(const ad_node_stack *stack, int64_t leaf, size_t needed) {
  if (needed <= stack->levels) return AD_OK;
  return ad_fail(AD_TYPE,
                 "leaf %lld cannot be summed here: there is memory for %zu sums of this rank's own leaves, but not for "
                 "sums of other leaves",
                 (long long)leaf, stack->levels);
}

static ad_status check_next(const ad_node_stack *stack, ad_node node) {
  AD_TRY(check_follows(stack, node, stack->count == stack->apart && !stack->arriving));
  return check_room(stack, node.first, ad_stack_used(stack) + 1);
}

ad_status ad_stack_next(const ad_node_stack *stack, ad_node node, void **out) {
  AD_TRY(check_next(stack, node));
  *out = ad_stack_level(stack, ad_stack_used(stack));
  return AD_OK;
}

int ad_stack_adds(const ad_node_stack *stack, ad_node node) {
  return node.count > 0 && stack->count > stack->apart &&
         ad_nodes_are_siblings(stack->node[stack->count - 1], node, stack->leaves);
}

ad_status ad_stack_place(ad_node_stack *stack, ad_node node, int adds) {
  if (!adds || !ad_stack_adds(stack, node)) {
    AD_TRY(check_next(stack, node));
    if (!stack->arriving) stack->at = stack->count;
    stack->node[stack->at + stack->arriving++] = node;
  } else {  // the collective adds to the top, so the parent of both nodes replaces the top as the node that arrives
    stack->at = --stack->count;
    stack->node[stack->at].count += node.count;
    stack->arriving = 1;
  }
  return AD_OK;
}

ad_status ad_stack_widen(ad_node_stack *stack, ad_node range) {
  ad_node sums[AD_NODES_MAX];
  ad_node_stack below = *stack;
  below.count = stack->apart;
  AD_TRY(check_follows(&below, range, 0));
  for (size_t i = stack->apart; i < stack->count; i++) {
    ad_node own = stack->node[i];
    if (own.first < range.first || own.first + own.count > range.first + range.count)
      return ad_stack_expect(stack, range.first, range.count);
  }
  size_t count = ad_nodes_of(range.first, range.count, stack->leaves, sums);
  size_t at = count > 1 ? stack->count : stack->apart;
  AD_TRY(check_room(stack, range.first, at + count));
  memcpy(&stack->node[at], sums, count * sizeof *sums);
  stack->count = stack->apart;
  stack->at = at;
  stack->arriving = count;
  return AD_OK;
}

/* Replaces the two nodes on top by their sum. */
static void sum_siblings(ad_node_stack *stack) {
  stack->count--;
  stack->node[stack->count - 1].count += stack->node[stack->count].count;
  void *lower = ad_stack_level(stack, stack->count - 1);
  const void *values[] = {lower, ad_stack_level(stack, stack->count)};
  ad_reducing how = {.dtype = stack->dtype, .accumulate = stack->dtype};
  if (stack->memory) ad_reduce(&lower, 1, values, 2, &how, stack->numel);
}

ad_stack_change ad_stack_settle(ad_node_stack *stack) {
  const ad_node *top = &stack->node[stack->count];
  if (stack->count > stack->apart + 1 && ad_nodes_are_siblings(top[-2], top[-1], stack->leaves)) {
    sum_siblings(stack);
    return AD_STACK_SUMMED;
  }
  if (!stack->arriving) return AD_STACK_SETTLED;
  stack->node[stack->count] = stack->node[stack->at];
  if (stack->at != stack->count && stack->memory)
    memcpy(ad_stack_level(stack, stack->count), ad_stack_level(stack, stack->at), value_bytes(stack));
  stack->count++;
  stack->at++;
  stack->arriving--;
  return AD_STACK_BROUGHT;
}

ad_status ad_stack_expect(const ad_node_stack *stack, int64_t first, int64_t count) {
  ad_node expected[AD_NODES_MAX];
  size_t nodes = ad_nodes_of(first, count, stack->leaves, expected), own = stack->count - stack->apart;
  const ad_node *found = &stack->node[stack->apart];
  int same = nodes == own;
  for (size_t i = 0; same && i < own; i++)
    same = found[i].first == expected[i].first && found[i].count == expected[i].count;
  if (same) return AD_OK;
  char buffer[320];
  size_t listed = 0;
  ad_text text = ad_text_on(buffer, sizeof buffer);
  for (size_t i = 0; i < own; i++)
    ad_text_list(&text, &listed, ": of leaves ", "[%lld, %lld)", (long long)found[i].first,
                 (long long)found[i].first + (long long)found[i].count);
  return ad_fail(AD_TYPE, "the sums must be %zu, of all leaves [%lld, %lld), but %zu were found%s", nodes,
                 (long long)first, (long long)(first + count), own, buffer);
}
