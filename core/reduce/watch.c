#include "reduce/watch.h"

#include "array/array.h"
#include "mesh/mesh.h"
#include "reduce/reducer.h"

enum { LEAF, NODE, REDUCED };
static const ad_injection_point points[] = {AD_INJECT_LEAF, AD_INJECT_NODE, AD_INJECT_REDUCED};

static void call(ad_injection mutation, void *passing) {
  if (mutation.function) mutation.function(mutation.context, passing);
}

static void see_leaf(void *context, void *passing) {
  ad_sum_watch *watch = context;
  const ad_bucket_passing *of = passing;
  call(watch->before[LEAF], passing);
  watch->reducer = of->reducer;
  watch->bucket = of->bucket;
}

/* The node on top of the stack of the bucket whose leaf was added last. */
static void see_node(void *context, void *passing) {
  ad_sum_watch *watch = context;
  const ad_node_stack *stack = passing;
  const ad_bucket *bucket = watch->bucket;
  size_t top = stack->count - 1;
  for (size_t i = 0; bucket && &bucket->stack == stack && i < bucket->members.count; i++) {
    size_t index = bucket->members.index[i];
    const ad_reduced_param *param = &watch->reducer->params[index];
    ad_watched_sum sum = {.param = index, .node = stack->node[top]};
    sum.values = ad_array_describe(watch->reducer->comm, stack->dtype, &param->shape, &param->gradient);
    ad_array all = {.data = ad_stack_level(stack, top), .dtype = stack->dtype};
    sum.values.data = ad_param_in(param, &all);
    watch->visit(watch->context, &sum);
  }
  call(watch->before[NODE], passing);
}

/* Returns the leaves whose sum this rank has after collectives over these axes. */
static ad_node leaves_of(const ad_reducer *reducer, const ad_mesh *mesh, ad_axes summed) {
  ad_group group = ad_mesh_group(mesh, summed & AD_AXES_DP, ad_comm_rank(reducer->comm));
  int64_t first = reducer->leaves.deal.leaves, end = 0;
  for (int64_t i = 0; i < ad_group_size(&group); i++) {
    int64_t rank = ad_group_rank(&group, i);
    ad_span own = ad_leaves_of_position(&reducer->leaves.deal, ad_mesh_position(mesh, rank, AD_DP_REPLICATE),
                                        ad_mesh_position(mesh, rank, AD_DP_SHARD), 0);
    if (own.first < first) first = own.first;
    if (own.first + own.count > end) end = own.first + own.count;
  }
  return (ad_node){first, end - first};
}

static void see_reduced(void *context, void *passing) {
  ad_sum_watch *watch = context;
  const ad_bucket_passing *of = passing;
  const ad_bucket *bucket = of->bucket;
  ad_axes summed = 0;
  call(watch->before[REDUCED], passing);
  if (!ad_reducer_has_leaves(of->reducer)) return;
  for (int step = 0; step < bucket->steps.next; step++) summed |= bucket->key.steps[step].axes;
  for (size_t i = 0; i < bucket->members.count; i++) {
    ad_watched_sum sum = {.param = bucket->members.index[i],
                          .node = leaves_of(of->reducer, bucket->key.mesh, summed),
                          .over = bucket->key.steps[bucket->steps.next - 1].axes,
                          .beyond = summed & ~AD_AXES_DP};
    sum.values = of->reducer->params[sum.param].result;
    watch->visit(watch->context, &sum);
  }
}

void ad_sums_watch(ad_sum_watch *watch) {
  static const ad_injection_function functions[] = {see_leaf, see_node, see_reduced};
  watch->reducer = NULL;
  watch->bucket = NULL;
  for (int i = 0; i < 3; i++) watch->before[i] = ad_injection_set(points[i], (ad_injection){functions[i], watch});
}
