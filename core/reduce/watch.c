#include "reduce/watch.h"

#include "array/array.h"
#include "array/packed.h"
#include "reduce/reducer.h"

enum { NODE, REDUCED };
static const ad_injection_point points[] = {AD_INJECT_NODE, AD_INJECT_REDUCED};

static void call(ad_injection mutation, void *passing) {
  if (mutation.function) mutation.function(mutation.context, passing);
}

/* Returns the packed array that describes the values of a stack. The stack of leaves has full gradients, as they were
 * submitted; the other stacks have what steps of the path made of them. */
static const ad_array *values_of(const ad_bucket *bucket, const ad_node_stack *stack) {
  if (stack == &bucket->stack) return &bucket->partial;
  if (stack == &bucket->late_sums) return &bucket->rescattered;
  return bucket->key.rescatters ? &bucket->scattered : &bucket->sum;
}

/* Returns this rank's part of the gradient of the bucket's member number `member` in the value on top of a stack. */
static ad_array top_of(const ad_node_passing *of, size_t member) {
  const ad_bucket *bucket = of->bucket;
  const ad_node_stack *stack = of->stack;
  const ad_reduced_param *param = &of->reducer->params[bucket->members.index[member]];
  size_t start, numel;
  ad_layout layout = param->gradient;
  for (int k = 0; k < of->steps; k++) ad_layout_set(&layout, bucket->key.steps[k].axes, bucket->key.steps[k].to);
  ad_array values = ad_array_describe(of->reducer->comm, stack->dtype, &param->shape, &layout);
  ad_packed_stretch(values_of(bucket, stack), ad_comm_rank(of->reducer->comm), member, &start, &numel);
  values.data = (char *)ad_stack_level(stack, stack->count - 1) + start * ad_dtype_size(stack->dtype);
  return values;
}

/* Calls watch->visit for the node on top, once for each parameter of the bucket. */
static void visit_top(const ad_sum_watch *watch, const ad_node_passing *of, ad_axes over, ad_axes beyond) {
  const ad_bucket *bucket = of->bucket;
  for (size_t i = 0; of->stack->memory && i < bucket->members.count; i++) {
    size_t index = bucket->members.index[i];
    ad_watched_sum sum = {
        .param = index, .node = of->stack->node[of->stack->count - 1], .over = over, .beyond = beyond};
    sum.values = top_of(of, i);
    watch->visit(watch->context, &sum);
  }
}

static void see_node(void *context, void *passing) {
  const ad_sum_watch *watch = context;
  const ad_node_passing *of = passing;
  visit_top(watch, of, of->is_brought && of->steps ? of->bucket->key.steps[of->steps - 1].axes : 0, 0);
  call(watch->before[NODE], passing);
}

/* At AD_INJECT_REDUCED, after a step of the path: if a step so far was over an axis that is not data-parallel, visits
 * the sum of all leaves, which is now also summed over that axis. */
static void see_reduced(void *context, void *passing) {
  const ad_sum_watch *watch = context;
  const ad_bucket_passing *of = passing;
  ad_bucket *bucket = of->bucket;
  ad_axes beyond = 0;
  call(watch->before[REDUCED], passing);
  if (!ad_reducer_has_leaves(of->reducer)) return;
  for (int step = 0; step < bucket->steps.next; step++) beyond |= bucket->key.steps[step].axes & ~AD_AXES_DP;
  ad_node_passing sum = {of->reducer, bucket, ad_bucket_sums(bucket), bucket->steps.next, 0};
  if (beyond) visit_top(watch, &sum, bucket->key.steps[bucket->steps.next - 1].axes, beyond);
}

void ad_sums_watch(ad_sum_watch *watch) {
  static const ad_injection_function functions[] = {see_node, see_reduced};
  for (int i = 0; i < 2; i++) watch->before[i] = ad_injection_set(points[i], (ad_injection){functions[i], watch});
}
