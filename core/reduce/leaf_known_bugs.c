/* Known bugs of sums by leaves, as mutations. Most of them give sums that are right within rounding or nearly so; a
 * check that compares bits kills them. */
#include <string.h>
#include "base/known_bugs.h"
#include "kernels/kernels.h"
#include "reduce/known_bugs.h"
#include "mesh/mesh.h"
#include "reduce/reducer.h"

static size_t level_bytes(const ad_node_stack *stack) { return stack->numel * ad_dtype_size(stack->dtype); }

/* dst += src, for the values of two nodes. */
static void add(const ad_node_stack *stack, void *dst, const void *src) {
  ad_accumulate(dst, stack->dtype, src, stack->dtype, 1, stack->numel);
}

/* Returns the gradients of the leaf that is about to be added to this rank's sums. */
static void *leaf_of(const ad_bucket *bucket) { return bucket->sent.data; }

/* Adds scattered sums to the leaf: `sum` has, for each parameter of the bucket, only the rows that this rank keeps
 * after so many steps of the path, and they are added to the same rows of the leaf. */
static void add_rows(const ad_bucket_passing *of, const ad_node_stack *stack, int steps, const char *sum) {
  const ad_bucket *bucket = of->bucket;
  size_t size = ad_dtype_size(stack->dtype);
  char *leaf = leaf_of(bucket);
  for (size_t i = 0; i < bucket->members.count; i++) {
    ad_segment segment = bucket->members.segments[i];
    ad_span rows = ad_bucket_rows_after(of->reducer, bucket, i, steps);
    size_t numel = (size_t)rows.count * segment.row;
    ad_accumulate(leaf + (size_t)rows.first * segment.row * size, stack->dtype, sum, stack->dtype, 1, numel);
    sum += numel * size;
    leaf += (size_t)segment.rows * segment.row * size;
  }
}

/* Known bug: a leaf's gradients are added to memory that still has the sum of the leaves before. */
static void write_into_sum(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  int steps = 0;
  while (steps < 2 && !ad_bucket_sums_after(of->bucket, steps)->count) steps++;
  const ad_node_stack *stack = ad_bucket_sums_after(of->bucket, steps);
  if (!stack->count || !leaf_of(of->bucket)) return;
  void *top = ad_stack_level(stack, stack->count - 1);
  add_rows(of, stack, stack == &of->bucket->stack ? 0 : steps, top);
  memset(top, 0, level_bytes(stack));
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* The two bugs below report that they took effect even if they did not: it depends on a rank's leaves and rounds
 * whether the rank ever holds two sums that are no siblings.
 *
 * Returns 1 if the stack's top node has just arrived and is no sibling of the node below it, so that both wait for
 * their siblings; else 0. */
static int waits_above_another(const ad_node_passing *of) {
  const ad_node_stack *stack = of->stack;
  if (!of->is_brought || stack->count < stack->apart + 2 || !stack->memory) return 0;
  return !ad_nodes_are_siblings(stack->node[stack->count - 2], stack->node[stack->count - 1], stack->leaves);
}

/* Known bug: a node is not added to its sibling later, but now to the sum below it. */
static void tear_node(void *context, void *passing) {
  const ad_node_passing *of = passing;
  ((ad_known_bug_scene *)context)->fired = 1;
  if (!waits_above_another(of)) return;
  void *top = ad_stack_level(of->stack, of->stack->count - 1);
  add(of->stack, ad_stack_level(of->stack, of->stack->count - 2), top);
  memset(top, 0, level_bytes(of->stack));
}

/* Known bug: two sums in the stack exchange their values before other sums are added to them. */
static void exchange_nodes(void *context, void *passing) {
  const ad_node_passing *of = passing;
  ((ad_known_bug_scene *)context)->fired = 1;
  if (!waits_above_another(of)) return;
  char *upper = ad_stack_level(of->stack, of->stack->count - 1);
  char *lower = ad_stack_level(of->stack, of->stack->count - 2);
  for (size_t i = 0; i < level_bytes(of->stack); i++) {
    char byte = lower[i];
    lower[i] = upper[i];
    upper[i] = byte;
  }
}

/* Known bug: a leaf's gradients are lost, as if no rank had the leaf. On each rank this is the first leaf whose
 * gradients are not all zero. */
static void lose_leaf(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  ad_known_bug_scene *scene = context;
  char *leaf = leaf_of(of->bucket);
  int number = (int)of->reducer->leaves.leaf + 1;
  size_t bytes = level_bytes(&of->bucket->stack), zeros = 0;
  if (!leaf || (scene->passed && scene->passed != number)) return;
  while (zeros < bytes && !leaf[zeros]) zeros++;
  if (zeros == bytes) return;
  memset(leaf, 0, bytes);
  scene->passed = number;
  scene->fired = 1;
}

/* Known bug: a leaf's gradients are added to zeros instead of being written, so that -0 becomes +0. */
static void add_to_zeros(void *context, void *passing) {
  const ad_bucket_passing *of = passing;
  const ad_node_stack *stack = &of->bucket->stack;
  char *values = leaf_of(of->bucket);
  size_t size = ad_dtype_size(stack->dtype);
  for (size_t i = 0; values && i < stack->numel; i++) {
    double value;
    ad_cast(&value, AD_F64, values + i * size, stack->dtype, 1);
    value += 0.0;
    ad_cast(values + i * size, stack->dtype, &value, AD_F64, 1);
  }
  ((ad_known_bug_scene *)context)->fired = 1;
}

/* Known bug: when a step begins, the sums of the step before are still in the stack. */
static void keep_stack(void *context, void *passing) {
  const ad_reducer *reducer = passing;
  if (!reducer->steps || reducer->leaves.rounds != 1) return;
  for (size_t i = 0; i < reducer->bucket_count; i++) ad_bucket_sums(&reducer->buckets[i])->count = 1;
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
     .no_effect = "no rank has a sum that waits for its sibling above another sum",
     .at = {{AD_INJECT_NODE, tear_node}}},
    {.name = "leaves-exchanged",
     .words = "two sums of leaves are exchanged before others are added to them",
     .needs = AD_NEED_TOKENS | AD_NEED_FOUR_LEAVES,
     .of_bits = 1,
     .no_effect = "no rank has a sum that waits for its sibling above another sum",
     .at = {{AD_INJECT_NODE, exchange_nodes}}},
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
