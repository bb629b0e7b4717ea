/* Known bugs of sums by leaves, as mutations. Each gives a sum that is right within rounding, or nearly: it is the check
 * for bits that sees it. */
#include <string.h>
#include "base/known_bugs.h"
#include "kernels/kernels.h"
#include "reduce/known_bugs.h"
#include "reduce/reducer.h"

static size_t level_bytes(const ad_node_stack *stack) { return stack->numel * ad_dtype_size(stack->dtype); }

/* dst += src, for the values of two nodes. */
static void add(const ad_node_stack *stack, void *dst, const void *src) {
  ad_accumulate(dst, stack->dtype, src, stack->dtype, 1, stack->numel);
}

/* The bug: the memory in which a leaf forms is not empty, but has the sum of the leaves before it. */
static void write_into_sum(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  const ad_node_stack *stack = &of->bucket->stack;
  if (!stack->count || !stack->memory) return;
  void *top = ad_stack_level(stack, stack->count - 1);
  add(stack, ad_stack_level(stack, stack->count), top);
  memset(top, 0, level_bytes(stack));
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* The bug: a node is torn. Its leaves are added one by one to the sum before it, instead of to each other. */
static void tear_node(void *context, void *passing) {
  const ad_node_stack *stack = passing;
  if (stack->count < 3 || !stack->memory || stack->node[stack->count - 1].count != 1) return;
  void *before = ad_stack_level(stack, stack->count - 3), *lower = ad_stack_level(stack, stack->count - 2);
  void *upper = ad_stack_level(stack, stack->count - 1);
  add(stack, before, lower);
  memcpy(lower, upper, level_bytes(stack));
  memset(upper, 0, level_bytes(stack));
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* The bug: a leaf's gradients are lost, as if no rank had the leaf. */
static void lose_leaf(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  const ad_node_stack *stack = &of->bucket->stack;
  if (of->reducer->leaves.leaf != 0 || !stack->memory) return;
  memset(ad_stack_level(stack, stack->count), 0, level_bytes(stack));
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* The bug: a leaf's gradients are added to zeros, not written, so that -0 becomes +0. */
static void add_to_zeros(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  const ad_node_stack *stack = &of->bucket->stack;
  char *values = ad_stack_level(stack, stack->count);
  size_t size = ad_dtype_size(stack->dtype);
  for (size_t i = 0; values && i < stack->numel; i++) {
    double value;
    ad_cast(&value, AD_F64, values + i * size, stack->dtype, 1);
    value += 0.0;
    ad_cast(values + i * size, stack->dtype, &value, AD_F64, 1);
  }
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* The bug: the stack still has the step before when a step begins. */
static void keep_stack(void *context, void *passing) {
  const ad_reducer *reducer = passing;
  if (!reducer->steps || reducer->leaves.rounds != 1) return;
  for (size_t i = 0; i < reducer->bucket_count; i++) reducer->buckets[i].stack.count = 1;
  ((ad_known_bug_scene *)context)->fired = 1;
}

static const ad_known_bug bugs[] = {
    {.name = "leaf-into-running-sum",
     .words = "a leaf's gradients are written into the sum of the leaves before it",
     .needs = AD_NEED_TOKENS | AD_NEED_TWO_LEAVES,
     .of_bits = 1,
     .at = {{AD_INJECT_LEAF, write_into_sum}}},
    {.name = "leaves-one-by-one",
     .words = "leaves are added one by one, not by the tree over leaves",
     .needs = AD_NEED_TOKENS | AD_NEED_FOUR_LEAVES,
     .of_bits = 1,
     .at = {{AD_INJECT_NODE, tear_node}}},
    {.name = "leaf-lost",
     .words = "a leaf's gradients are in no sum",
     .needs = AD_NEED_TOKENS,
     .of_bits = 1,
     .at = {{AD_INJECT_LEAF, lose_leaf}}},
    {.name = "leaf-added-to-zeros",
     .words = "a leaf's gradients are added to zeros, not written there",
     .needs = AD_NEED_TOKENS,
     .of_bits = 1,
     .no_effect = "no gradient of a leaf has an element that is -0",
     .at = {{AD_INJECT_LEAF, add_to_zeros}}},
    {.name = "leaves-of-step-before",
     .words = "a step's sums of leaves begin with those of the step before",
     .needs = AD_NEED_TOKENS,
     .of_bits = 1,
     .at = {{AD_INJECT_MICROBATCH, keep_stack}}},
};

const ad_known_bug *ad_reduce_leaf_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
