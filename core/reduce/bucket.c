/* Lays gradients out in buckets: chooses which gradients share a bucket, the order of buckets, and their memory. All
 * choices depend only on the list of parameters, so every rank makes the same buckets. Frozen parameters are in no
 * bucket. */
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "reduce/reducer.h"
#include "comm/shared.h"
#include "layout/nest.h"
#include "layout/type.h"

/* ---- which parameters share a bucket ---- */

static int has_room(const ad_reducer *reducer, const ad_bucket *bucket, const ad_reduced_param *param) {
  size_t bytes = (bucket->members.numel + param->numel) * ad_dtype_size(bucket->key.comm_dtype);
  return !bucket->members.count || bytes <= ad_bucket_group(reducer, bucket)->bucket_bytes;
}

/* Returns the index of the last bucket made for this key, or bucket_count if there is none. */
static size_t find_bucket(const ad_reducer *reducer, const ad_bucket_key *key) {
  for (size_t i = reducer->bucket_count; i-- > 0;) {
    if (ad_bucket_keys_are_identical(&reducer->buckets[i].key, key)) return i;
  }
  return reducer->bucket_count;
}

static ad_status add_bucket(ad_reducer *reducer, const ad_bucket_key *key) {
  AD_TRY(ad_grow(&reducer->buckets, reducer->bucket_count, reducer->bucket_count + 1));
  reducer->buckets[reducer->bucket_count++] = (ad_bucket){.key = *key};
  return AD_OK;
}

static ad_status put_in_bucket(ad_reducer *reducer, size_t param_index) {
  ad_reduced_param *param = &reducer->params[param_index];
  ad_bucket_key key = {0};
  AD_TRY(ad_bucket_key_find(reducer, param, &key));
  size_t index = find_bucket(reducer, &key);
  if (index < reducer->bucket_count && !has_room(reducer, &reducer->buckets[index], param))
    index = reducer->bucket_count;
  if (index == reducer->bucket_count) AD_TRY(add_bucket(reducer, &key));
  ad_bucket *bucket = &reducer->buckets[index];
  AD_TRY(ad_grow(&bucket->members.index, bucket->members.count, bucket->members.count + 1));
  AD_TRY(ad_grow(&bucket->members.segments, bucket->members.count, bucket->members.count + 1));
  AD_TRY(ad_grow(&bucket->members.names, bucket->members.count, bucket->members.count + 1));
  bucket->members.names[bucket->members.count] = param->name;
  bucket->members.segments[bucket->members.count] = param->segment;
  bucket->members.index[bucket->members.count++] = param_index;
  param->offset = bucket->members.numel;
  bucket->members.numel += param->numel;
  return AD_OK;
}

/* Returns the lowest index of a parameter in the bucket. Backward computes gradients from the last parameter to the
 * first, so the bucket is complete when the gradient of this parameter arrives. */
static size_t lowest_param(const ad_bucket *bucket) { return bucket->members.index[bucket->members.count - 1]; }

static void sort_by_readiness(ad_reducer *reducer) {
  ad_bucket *buckets = reducer->buckets;
  for (size_t i = 1; i < reducer->bucket_count; i++) {
    ad_bucket moved = buckets[i];
    size_t at = i;
    for (; at > 0 && lowest_param(&buckets[at - 1]) < lowest_param(&moved); at--) buckets[at] = buckets[at - 1];
    buckets[at] = moved;
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    for (size_t k = 0; k < buckets[i].members.count; k++) reducer->params[buckets[i].members.index[k]].bucket = i;
  }
}

ad_status ad_buckets_build(ad_reducer *reducer) {
  for (size_t i = reducer->param_count; i-- > 0;)
    if (!reducer->params[i].frozen) AD_TRY(put_in_bucket(reducer, i));
  sort_by_readiness(reducer);
  return AD_OK;
}

/* ---- the memory of buckets ---- */

/* Returns the type of a packed bucket on an axis over which its gradients are not reduced: the type that all its
 * parameters have on the axis; but V if their types differ or are S(d), because each rank then has elements of its
 * own. */
static ad_type unmoved_type(const ad_reducer *reducer, const ad_bucket *bucket, int axis) {
  ad_type type = reducer->params[bucket->members.index[0]].update.type[axis];
  for (size_t i = 1; i < bucket->members.count; i++) {
    if (reducer->params[bucket->members.index[i]].update.type[axis] != type) return AD_V;
  }
  return ad_type_is_sharded(type) ? AD_V : type;
}

/* Sets the layouts that the bucket must have before and after its path. They are derived from its parameters and not
 * from the path, so that the end of the path can be checked against them. Gradients are reduced over each axis that the
 * mesh names and on which gradient and update differ; on such an axis all parameters of a bucket have the same two
 * types. */
static void set_layouts(const ad_reducer *reducer, ad_bucket *bucket) {
  const ad_reduced_param *first = &reducer->params[bucket->members.index[0]];
  ad_axes sharded = 0;
  bucket->full = bucket->updated = ad_layout_all(bucket->key.mesh, AD_V);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type before = first->gradient.type[axis], after = first->update.type[axis];
    int moves = before != after && (ad_mesh_named(bucket->key.mesh) & AD_AXES(axis));
    if (!moves) before = after = unmoved_type(reducer, bucket, axis);
    ad_layout_set(&bucket->full, AD_AXES(axis), before);
    if (ad_type_is_sharded(after))
      sharded |= AD_AXES(axis);
    else
      ad_layout_set(&bucket->updated, AD_AXES(axis), after);
  }
  for (int depth = 0; depth < AD_AXIS_COUNT; depth++) {  // outermost first: a later axis becomes the innermost
    ad_axis axis = ad_layout_sharded_at(&first->update, 0, depth);
    if (axis != AD_AXIS_COUNT && (sharded & AD_AXES(axis))) ad_layout_set(&bucket->updated, AD_AXES(axis), AD_S(0));
  }
}

static ad_status give_memory(const ad_reducer *reducer, ad_array *array) {
  if (ad_comm_is_dry(reducer->comm)) return AD_OK;
  return ad_comm_alloc(reducer->comm, ad_array_bytes(array), &array->data);
}

static void describe_results(ad_reducer *reducer, ad_bucket *bucket) {
  for (size_t i = 0; i < bucket->members.count; i++) {
    ad_reduced_param *param = &reducer->params[bucket->members.index[i]];
    param->result = ad_array_describe(reducer->comm, bucket->key.policy.accumulate, &param->shape, &param->update);
  }
}

static void place_results(ad_reducer *reducer, const ad_bucket *bucket) {
  char *at = bucket->key.rescatters ? bucket->rescattered.data : bucket->sum.data;
  for (size_t i = 0; i < bucket->members.count && at; i++) {
    ad_array *result = &reducer->params[bucket->members.index[i]].result;
    result->data = at;
    at += ad_array_bytes(result);
  }
}

/* Describes the bucket's arrays. `sum` is as large as `sent`, or smaller if the path begins with a reduce_scatter. */
static ad_status describe_arrays(const ad_reducer *reducer, ad_bucket *bucket) {
  ad_comm *comm = reducer->comm;
  ad_array sent = ad_array_describe_packed(comm, bucket->key.comm_dtype, bucket->members.segments,
                                           bucket->members.count, &bucket->full);
  bucket->sent = bucket->sum = sent;
  const ad_path_step *first = &bucket->key.steps[0], *second = first + 1;
  if (bucket->key.scatters) AD_TRY(ad_array_after(comm, &sent, first->move, first->axes, first->to, &bucket->sum));
  bucket->partial = sent;
  bucket->partial.dtype = bucket->sum.dtype = bucket->key.policy.accumulate;
  bucket->earlier = bucket->sum;
  if (!bucket->key.rescatters) return AD_OK;
  AD_TRY(ad_array_after(comm, &bucket->sum, second->move, second->axes, second->to, &bucket->rescattered));
  bucket->earlier = bucket->rescattered;
  return AD_OK;
}

/* Returns 1 if the later steps of the bucket's path need their own memory for their input, because the bucket's slot
 * may belong to another bucket when a later step begins; else 0. */
static int relays(const ad_bucket *bucket) {
  return bucket->turn.window >= 0 && bucket->key.step_count > 1 && !ad_bucket_is_one_array(bucket);
}

/* Allocates the memory of an array: for one value or, if `stack` has levels, for all levels of the stack. */
static ad_status give_levels(const ad_reducer *reducer, ad_array *array, ad_node_stack *stack) {
  if (!stack->levels) return give_memory(reducer, array);
  void *memory = NULL;
  if (!ad_comm_is_dry(reducer->comm)) AD_TRY(ad_comm_alloc(reducer->comm, ad_stack_bytes(stack), &memory));
  array->data = stack->memory = memory;
  return AD_OK;
}

static ad_status allocate(ad_reducer *reducer, ad_bucket *bucket) {
  int one = ad_bucket_is_one_array(bucket);
  if (ad_reducer_has_leaves(reducer)) AD_TRY(ad_leaves_make_stacks(reducer, bucket));
  if (bucket->turn.window < 0) AD_TRY(give_levels(reducer, &bucket->sent, &bucket->stack));
  if (relays(bucket)) {
    bucket->relayed = bucket->sum;
    bucket->relayed.dtype = bucket->key.comm_dtype;
    AD_TRY(give_memory(reducer, &bucket->relayed));
  }
  if (one) bucket->partial.data = bucket->sent.data;
  if (one && !ad_bucket_sums_apart(bucket)) bucket->sum.data = bucket->sent.data;
  if (!bucket->sum.data) AD_TRY(give_levels(reducer, &bucket->sum, &bucket->early_sums));
  if (bucket->key.rescatters) {
    bucket->scattered = bucket->sum;
    AD_TRY(give_levels(reducer, &bucket->rescattered, &bucket->late_sums));
  }
  place_results(reducer, bucket);
  return AD_OK;
}

/* Returns how many bytes all ranks of a node read and write in a step when they copy gradients into buckets and cast
 * sums. */
static size_t copied_bytes(const ad_reducer *reducer, const ad_mesh *mesh) {
  ad_group everyone = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(reducer->comm));
  size_t bytes = 0, ranks = ad_comm_shares(reducer->comm, &everyone) ? (size_t)ad_group_size(&everyone) : 1;
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    const ad_bucket *bucket = &reducer->buckets[i];
    bytes += ad_array_bytes(&bucket->partial) + ad_array_bytes(&bucket->sent);
    if (!ad_bucket_is_one_array(bucket)) bytes += ad_array_bytes(&bucket->sent) + ad_array_bytes(&bucket->sum);
  }
  return bytes * ranks;
}

ad_status ad_buckets_allocate(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    set_layouts(reducer, &reducer->buckets[i]);
    describe_results(reducer, &reducer->buckets[i]);
    AD_TRY(describe_arrays(reducer, &reducer->buckets[i]));
  }
  AD_TRY(ad_slots_build(reducer));
  for (size_t i = 0; i < reducer->bucket_count; i++) AD_TRY(allocate(reducer, &reducer->buckets[i]));
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    bucket->past_caches = ad_is_past_caches(copied_bytes(reducer, bucket->key.mesh));
  }
  return AD_OK;
}

ad_status ad_bucket_keep_partial(ad_reducer *reducer, ad_bucket *bucket) {
  bucket->keeps_partial = 1;
  return bucket->partial.data ? AD_OK : give_memory(reducer, &bucket->partial);
}

ad_status ad_bucket_keep_earlier(ad_reducer *reducer, ad_bucket *bucket) {
  return bucket->earlier.data ? AD_OK : give_memory(reducer, &bucket->earlier);
}

static void release_bucket(ad_reducer *reducer, ad_bucket *bucket) {
  // Other ranks may still read and write the bucket. If one of them fails, ad_comm_wait returns an error instead of
  // hanging.
  if (bucket->steps.request.id && ad_comm_wait(reducer->comm, &bucket->steps.request)) bucket->steps.request.id = 0;
  if (bucket->turn.window >= 0) bucket->sent.data = bucket->stack.memory = NULL;
  if (bucket->stack.memory) bucket->sent.data = bucket->partial.data = bucket->stack.memory;
  if (bucket->key.rescatters) bucket->sum.data = bucket->scattered.data;
  if (bucket->stack.memory && !ad_bucket_sums_apart(bucket)) bucket->sum.data = bucket->stack.memory;
  if (bucket->early_sums.memory) bucket->sum.data = bucket->early_sums.memory;
  if (bucket->sum.data == bucket->sent.data) bucket->sum.data = NULL;
  if (bucket->partial.data == bucket->sent.data) bucket->partial.data = NULL;
  ad_array_destroy(reducer->comm, &bucket->sent);
  ad_array_destroy(reducer->comm, &bucket->partial);
  ad_array_destroy(reducer->comm, &bucket->sum);
  ad_array_destroy(reducer->comm, &bucket->rescattered);
  ad_array_destroy(reducer->comm, &bucket->earlier);
  ad_array_destroy(reducer->comm, &bucket->relayed);
  ad_release(bucket->members.index);
  ad_release(bucket->members.segments);
  ad_release(bucket->members.names);
}

void ad_buckets_release(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) release_bucket(reducer, &reducer->buckets[i]);
  ad_release(reducer->buckets);
  ad_slots_release(reducer);
}
