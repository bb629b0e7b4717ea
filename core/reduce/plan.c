/* Describes a reducer's reductions and memory, for plans and reports. Nothing here computes or communicates. */
#include "array/array.h"
#include "base/error.h"
#include "reduce/plan.h"
#include "reduce/reducer.h"
#include "mesh/mesh.h"

static ad_reduction_plan describe_reduction(const ad_reducer *reducer, size_t index, int number) {
  const ad_bucket *bucket = &reducer->buckets[index];
  ad_path_step step = bucket->key.steps[number];
  ad_axes axes = step.axes & ad_mesh_large(bucket->key.mesh);
  const ad_array *before = number ? &bucket->sum : &bucket->sent;
  if (bucket->key.rescatters && number) before = number == 1 ? &bucket->scattered : &bucket->rescattered;
  size_t numel = ad_array_numel(before);
  return (ad_reduction_plan){.bucket = (int)index,
                             .move = step.move,
                             .axes = axes,
                             .group_size = ad_mesh_ranks_over(bucket->key.mesh, axes),
                             .early = !number && bucket->key.early,
                             .dtype = bucket->key.comm_dtype,
                             .bytes = numel * ad_dtype_size(bucket->key.comm_dtype),
                             .params = bucket->members.index,
                             .param_count = bucket->members.count};
}

/* Describes reduction number `wanted` in *out and returns `wanted` + 1. If there are fewer reductions, returns how many
 * there are. */
static size_t find_reduction(const ad_reducer *reducer, size_t wanted, ad_reduction_plan *out) {
  size_t count = 0;
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    const ad_bucket *bucket = &reducer->buckets[i];
    for (int k = 0; k < bucket->key.step_count; k++) {
      // a reduction over one rank sums nothing and is left out
      if (!(bucket->key.steps[k].axes & ad_mesh_large(bucket->key.mesh))) continue;
      if (count++ != wanted) continue;
      *out = describe_reduction(reducer, i, k);
      return count;
    }
  }
  return count;
}

size_t ad_reducer_plan_count(const ad_reducer *reducer) {
  ad_reduction_plan unused;
  return find_reduction(reducer, SIZE_MAX, &unused);
}

ad_reduction_plan ad_reducer_plan(const ad_reducer *reducer, size_t index) {
  ad_reduction_plan plan = {0};
  find_reduction(reducer, index, &plan);
  return plan;
}

ad_precision_policy ad_reducer_precision_policy(const ad_reducer *reducer, size_t param) {
  return ad_has(param, reducer->param_count, __func__, "parameter") ? reducer->params[param].policy
                                                                    : (ad_precision_policy){0};
}
size_t ad_reducer_bucket_count(const ad_reducer *reducer) { return reducer->bucket_count; }

ad_bucket_plan ad_reducer_bucket(const ad_reducer *reducer, size_t index) {
  if (!ad_has(index, reducer->bucket_count, __func__, "bucket")) return (ad_bucket_plan){0};
  const ad_bucket *bucket = &reducer->buckets[index];
  return (ad_bucket_plan){
      .move = bucket->key.step_count ? bucket->key.steps[0].move : 0,
      .axes = bucket->key.step_count ? bucket->key.steps[0].axes & ad_mesh_large(bucket->key.mesh) : 0,
      .dtype = bucket->key.comm_dtype,
      .bytes = ad_bucket_bytes(bucket),
      .leaf_sums = bucket->stack.levels,
      .leaf_shards = bucket->early_sums.levels,
      .leaf_shard_bytes = bucket->early_sums.levels ? ad_stack_bytes(&bucket->early_sums) : 0,
      .group = bucket->key.group,
      .lasting = bucket->key.lasting,
      .window = bucket->turn.window,
      .overtaken = bucket->turn.overtaken,
      .params = bucket->members.index,
      .param_count = bucket->members.count};
}

ad_window_plan ad_reducer_window(const ad_reducer *reducer, int window) {
  if (!ad_has((size_t)window, reducer->window_count, __func__, "window")) return (ad_window_plan){0};
  const ad_window *of = &reducer->windows[window];
  ad_window_plan plan = {.slots = of->count};
  for (size_t i = 0; i < of->count; i++) plan.bytes += of->slots[i].bytes;
  return plan;
}

size_t ad_reducer_sum_bytes(const ad_reducer *reducer) {
  size_t bytes = 0;
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    const ad_bucket *bucket = &reducer->buckets[i];
    // `sum` is counted if it has its own memory. On backend dry, memory is counted as if it were allocated.
    if (ad_bucket_sums_apart(bucket) || !ad_bucket_is_one_array(bucket)) bytes += ad_bucket_sum_bytes(bucket);
    if (bucket->keeps_partial && !ad_bucket_is_one_array(bucket)) bytes += ad_array_bytes(&bucket->partial);
    if (bucket->relayed.shape.ndim) bytes += ad_array_bytes(&bucket->relayed);
    if (bucket->earlier.data || bucket->counters.has_earlier) bytes += ad_array_bytes(&bucket->earlier);
  }
  return bytes;
}

size_t ad_reducer_window_needed(const ad_reducer *reducer, size_t param) {
  return ad_has(param, reducer->param_count, __func__, "parameter")
             ? reducer->groups[reducer->params[param].group].needed
             : 0;
}

size_t ad_reducer_bytes(const ad_reducer *reducer) {
  size_t bytes = ad_reducer_sum_bytes(reducer) + ad_slots_bytes(reducer);
  for (size_t i = 0; i < reducer->bucket_count; i++)
    if (reducer->buckets[i].turn.window < 0) bytes += ad_bucket_bytes(&reducer->buckets[i]);
  return bytes;
}
