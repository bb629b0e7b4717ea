#include "reduce/watch.h"

#include "array/array.h"
#include "reduce/reducer.h"

enum { NODE, REDUCED };
static const ad_injection_point points[] = {AD_INJECT_NODE, AD_INJECT_REDUCED};

static void call(ad_injection mutation, void *passing) {
  if (mutation.function) mutation.function(mutation.context, passing);
}

/* Returns this rank's part of a parameter's gradient in the value on top of a stack. The stack of leaves has full
 * gradients, as they were submitted. The stack of early sums has gradients that are packed like the reducer's results,
 * which lie on the stack's lowest level. */
static ad_array top_of(const ad_node_passing *of, const ad_reduced_param *param) {
  const ad_bucket *bucket = of->bucket;
  const ad_node_stack *stack = of->stack;
  ad_layout layout = param->gradient;
  for (int k = 0; k < of->steps; k++) ad_layout_set(&layout, bucket->key.steps[k].axes, bucket->key.steps[k].to);
  ad_array values = ad_array_describe(of->reducer->comm, stack->dtype, &param->shape, &layout);
  ad_array level = {.data = ad_stack_level(stack, stack->count - 1), .dtype = stack->dtype};
  size_t offset = (size_t)((const char *)param->result.data - stack->memory);
  values.data = stack == &bucket->early_sums ? (char *)level.data + offset : ad_param_in(param, &level);
  return values;
}

/* Calls watch->visit for the node on top, once for each parameter of the bucket. */
static void visit_top(const ad_sum_watch *watch, const ad_node_passing *of, ad_axes over, ad_axes beyond) {
  const ad_bucket *bucket = of->bucket;
  for (size_t i = 0; of->stack->memory && i < bucket->members.count; i++) {
    size_t index = bucket->members.index[i];
    ad_watched_sum sum = {
        .param = index, .node = of->stack->node[of->stack->count - 1], .over = over, .beyond = beyond};
    sum.values = top_of(of, &of->reducer->params[index]);
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
