#include "reduce/stack.h"

#include "base/error.h"
#include "base/text.h"
#include "kernels/kernels.h"

/* Each level begins at a multiple of this many bytes, so that all levels are aligned like the first. */
enum { ALIGNMENT = 64 };

ad_node_stack ad_stack_for(int64_t first, int64_t count, int64_t leaves, ad_dtype dtype, size_t numel) {
  ad_node_stack stack = {.leaves = leaves, .dtype = dtype, .numel = numel, .levels = 1};
  ad_node nodes[AD_NODES_MAX];
  for (int64_t pushed = 0; pushed < count; pushed++) {
    size_t needed = ad_nodes_of(first, pushed, leaves, nodes) + 1;
    if (needed > stack.levels) stack.levels = needed;
  }
  return stack;
}

static size_t value_bytes(const ad_node_stack *stack) { return stack->numel * ad_dtype_size(stack->dtype); }

static size_t level_bytes(const ad_node_stack *stack) {
  return (value_bytes(stack) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t ad_stack_bytes(const ad_node_stack *stack) {
  return (stack->levels - 1) * level_bytes(stack) + value_bytes(stack);
}

static void *level(const ad_node_stack *stack, size_t at) {
  return stack->memory ? stack->memory + at * level_bytes(stack) : NULL;
}

/* Law 6: a sum of the node and of what is in the stack must have each leaf once, in ascending order. */
static ad_status check_follows(const ad_node_stack *stack, ad_node node) {
  ad_node top = stack->count ? stack->node[stack->count - 1] : (ad_node){node.first, 0};
  int64_t end = node.first + node.count, expected = top.first + top.count;
  if (node.first != expected || node.count < 1 || end > stack->leaves)
    return ad_fail(
        AD_TYPE,
        "the sum of leaves [%lld, %lld) cannot follow that of leaves [%lld, %lld) of %lld: each leaf must be "
        "in the sum once, in ascending order",
        (long long)node.first, (long long)end, (long long)top.first, (long long)expected, (long long)stack->leaves);
  if (stack->count < stack->levels) return AD_OK;
  return ad_fail(AD_TYPE,
                 "leaf %lld cannot be summed here: there is memory for %zu sums of this rank's own leaves, but not for "
                 "sums of other leaves",
                 (long long)node.first, stack->levels);
}

ad_status ad_stack_next(const ad_node_stack *stack, ad_node node, void **out) {
  AD_TRY(check_follows(stack, node));
  *out = level(stack, stack->count);
  return AD_OK;
}

/* Replaces the two nodes on top by their sum. */
static void sum_siblings(ad_node_stack *stack) {
  stack->count--;
  stack->node[stack->count - 1].count += stack->node[stack->count].count;
  void *lower = level(stack, stack->count - 1);
  const void *values[] = {lower, level(stack, stack->count)};
  ad_reducing how = {.dtype = stack->dtype, .accumulate = stack->dtype};
  if (stack->memory) ad_reduce(&lower, 1, values, 2, &how, stack->numel);
}

ad_status ad_stack_push(ad_node_stack *stack, ad_node node) {
  AD_TRY(check_follows(stack, node));
  stack->node[stack->count++] = node;
  while (stack->count > 1 &&
         ad_nodes_are_siblings(stack->node[stack->count - 2], stack->node[stack->count - 1], stack->leaves))
    sum_siblings(stack);
  return AD_OK;
}

ad_status ad_stack_expect(const ad_node_stack *stack, ad_node node) {
  if (stack->count == 1 && stack->node[0].first == node.first && stack->node[0].count == node.count) return AD_OK;
  char buffer[320];
  size_t listed = 0;
  ad_text text = ad_text_on(buffer, sizeof buffer);
  for (size_t i = 0; i < stack->count; i++)
    ad_text_list(&text, &listed, ": of leaves ", "[%lld, %lld)", (long long)stack->node[i].first,
                 (long long)stack->node[i].first + stack->node[i].count);
  return ad_fail(AD_TYPE, "all leaves of this rank must be in one sum, of leaves [%lld, %lld), but %zu were found%s",
                 (long long)node.first, (long long)node.first + node.count, stack->count, buffer);
}
