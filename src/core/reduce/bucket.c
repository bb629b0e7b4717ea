/* Laying gradients out in buckets: which share one, in which order, and their memory. Decided once, from the list of
 * parameters alone, so that all ranks decide alike. */
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "layout/nest.h"
#include "reduce/reducer.h"

/* ---- the path ---- */

static ad_status refuse_step(const ad_reduced_param *param, ad_path_step step, const char *why) {
  char axes[96], layout[160], storage[160];
  return ad_fail(AD_INVALID,
                 "parameter `%s`: its storage \"%s\" of what is computed as \"%s\" needs %s over %s, but %s",
                 param->name, ad_layout_print(&param->storage, storage, sizeof storage),
                 ad_layout_print(&param->layout, layout, sizeof layout), ad_move_name(step.move),
                 ad_axes_print(step.axes, axes, sizeof axes), why);
}

/* The parts that the storage layout gives to the ranks are the ones that a reduce_scatter by rows gives them. */
static int is_cut_by_rows(const ad_reducer *reducer, const ad_reduced_param *param, ad_axes axes) {
  return ad_layout_is_cut_once(&param->storage, param->shape.dim[0], axes, ad_comm_rank(reducer->comm),
                               param->segment.rows);
}

static ad_status check_step(const ad_reducer *reducer, const ad_reduced_param *param, const ad_bucket *key, int index) {
  ad_path_step step = key->steps[index];
  if (step.move == AD_MOVE_ALL_REDUCE) return AD_OK;
  if (step.move != AD_MOVE_REDUCE_SCATTER)
    return refuse_step(param, step, "gradients are cut only where they are summed: store it there as it is computed");
  if (index) return refuse_step(param, step, "a gradient is cut in one step: cut its storage on neighbouring axes");
  if (step.to != AD_S(0) || !param->shape.ndim)
    return refuse_step(param, step, "storage is cut along the first dimension: S0");
  if (!is_cut_by_rows(reducer, param, step.axes))
    return refuse_step(param, step, "its parts are not those of one cut over all these ranks; cut it on one axis");
  return AD_OK;
}

static ad_status find_path(const ad_reducer *reducer, const ad_reduced_param *param, ad_bucket *key) {
  ad_status status = ad_layout_path(&param->gradient, &param->storage, key->steps, &key->step_count);
  if (status) return ad_fail_in(status, "parameter `%s`", param->name);
  for (int i = 0; i < key->step_count; i++) AD_TRY(check_step(reducer, param, key, i));
  key->mesh = param->layout.mesh;
  key->contract = param->contract;
  key->scatters = key->step_count && key->steps[0].move == AD_MOVE_REDUCE_SCATTER;
  key->lasting = reducer->options.reuses && param->lasting;
  key->wire = key->step_count ? key->contract.reduce : key->contract.accumulate;
  return AD_OK;
}

static int same_contract(const ad_contract *a, const ad_contract *b) {
  return a->param == b->param && a->grad == b->grad && a->raw == b->raw && a->reduce == b->reduce &&
         a->accumulate == b->accumulate;
}

static int same_step(ad_path_step a, ad_path_step b) {
  return a.move == b.move && a.axes == b.axes && a.from == b.from && a.to == b.to;
}

int ad_buckets_are_alike(const ad_bucket *a, const ad_bucket *b) {
  if (!ad_mesh_equal(a->mesh, b->mesh) || !same_contract(&a->contract, &b->contract)) return 0;
  if (a->step_count != b->step_count || a->lasting != b->lasting) return 0;
  for (int i = 0; i < a->step_count; i++) {
    if (!same_step(a->steps[i], b->steps[i])) return 0;
  }
  return 1;
}

/* ---- which parameters share a bucket ---- */

static int has_room(const ad_reducer *reducer, const ad_bucket *bucket, const ad_reduced_param *param) {
  size_t bytes = (bucket->numel + param->numel) * ad_dtype_size(bucket->wire);
  return !bucket->param_count || bytes <= reducer->options.bucket_bytes;
}

/* The youngest bucket with this key; bucket_count if there is none. */
static size_t find_bucket(const ad_reducer *reducer, const ad_bucket *key) {
  for (size_t i = reducer->bucket_count; i-- > 0;) {
    if (ad_buckets_are_alike(&reducer->buckets[i], key)) return i;
  }
  return reducer->bucket_count;
}

static ad_status add_bucket(ad_reducer *reducer, const ad_bucket *key) {
  AD_TRY(ad_grow(&reducer->buckets, reducer->bucket_count, reducer->bucket_count + 1));
  reducer->buckets[reducer->bucket_count++] = *key;
  return AD_OK;
}

static ad_status put_in_bucket(ad_reducer *reducer, size_t param_index) {
  ad_reduced_param *param = &reducer->params[param_index];
  ad_bucket key = {0};
  AD_TRY(find_path(reducer, param, &key));
  size_t index = find_bucket(reducer, &key);
  if (index < reducer->bucket_count && !has_room(reducer, &reducer->buckets[index], param))
    index = reducer->bucket_count;
  if (index == reducer->bucket_count) AD_TRY(add_bucket(reducer, &key));
  ad_bucket *bucket = &reducer->buckets[index];
  AD_TRY(ad_grow(&bucket->params, bucket->param_count, bucket->param_count + 1));
  AD_TRY(ad_grow(&bucket->segments, bucket->param_count, bucket->param_count + 1));
  AD_TRY(ad_grow(&bucket->names, bucket->param_count, bucket->param_count + 1));
  bucket->names[bucket->param_count] = param->name;
  bucket->segments[bucket->param_count] = param->segment;
  bucket->params[bucket->param_count++] = param_index;
  param->offset = bucket->numel;
  bucket->numel += param->numel;
  return AD_OK;
}

/* A bucket is ready when its lowest parameter is; backward goes downwards. */
static size_t lowest_param(const ad_bucket *bucket) { return bucket->params[bucket->param_count - 1]; }

static void sort_by_readiness(ad_reducer *reducer) {
  ad_bucket *buckets = reducer->buckets;
  for (size_t i = 1; i < reducer->bucket_count; i++) {
    ad_bucket moved = buckets[i];
    size_t at = i;
    for (; at > 0 && lowest_param(&buckets[at - 1]) < lowest_param(&moved); at--) buckets[at] = buckets[at - 1];
    buckets[at] = moved;
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    for (size_t k = 0; k < buckets[i].param_count; k++) reducer->params[buckets[i].params[k]].bucket = i;
  }
}

ad_status ad_buckets_build(ad_reducer *reducer) {
  for (size_t i = reducer->param_count; i-- > 0;) AD_TRY(put_in_bucket(reducer, i));
  sort_by_readiness(reducer);
  return AD_OK;
}

/* ---- memory ---- */

/* The type that the values packed in a bucket have on an axis on which their gradients do not move: the one that they
 * all have, V where they differ or are cut, so that every rank has its own elements. */
static ad_type unmoved_type(const ad_reducer *reducer, const ad_bucket *bucket, int axis) {
  ad_type type = reducer->params[bucket->params[0]].storage.type[axis];
  for (size_t i = 1; i < bucket->param_count; i++) {
    if (reducer->params[bucket->params[i]].storage.type[axis] != type) return AD_V;
  }
  return ad_type_is_cut(type) ? AD_V : type;
}

/* What the parameters say, not the path: an axis is moved on if the mesh names it and gradient and storage differ
 * there. All parameters of a bucket have the same two types on such an axis. */
static void set_layouts(const ad_reducer *reducer, ad_bucket *bucket) {
  const ad_reduced_param *first = &reducer->params[bucket->params[0]];
  bucket->whole = bucket->stored = ad_layout_all(bucket->mesh, AD_V);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type before = first->gradient.type[axis], after = first->storage.type[axis];
    int moves = before != after && (ad_mesh_named(bucket->mesh) & AD_AXES(axis));
    if (!moves) before = after = unmoved_type(reducer, bucket, axis);
    ad_layout_set(&bucket->whole, AD_AXES(axis), before);
    ad_layout_set(&bucket->stored, AD_AXES(axis), after);
  }
}

static ad_status give_memory(const ad_reducer *reducer, ad_array *array) {
  if (ad_comm_is_dry(reducer->comm)) return AD_OK;
  return ad_comm_alloc(reducer->comm, ad_array_bytes(array), &array->data);
}

static void describe_results(ad_reducer *reducer, ad_bucket *bucket) {
  for (size_t i = 0; i < bucket->param_count; i++) {
    ad_reduced_param *param = &reducer->params[bucket->params[i]];
    param->result = ad_array_describe(reducer->comm, bucket->contract.accumulate, &param->shape, &param->storage);
  }
}

static void place_results(ad_reducer *reducer, const ad_bucket *bucket) {
  char *at = bucket->sum.data;
  for (size_t i = 0; i < bucket->param_count && at; i++) {
    ad_array *result = &reducer->params[bucket->params[i]].result;
    result->data = at;
    at += ad_array_bytes(result);
  }
}

/* Only a reduce_scatter makes the sum smaller than what is sent. */
static ad_status describe_arrays(const ad_reducer *reducer, ad_bucket *bucket) {
  ad_comm *comm = reducer->comm;
  ad_array sent = ad_array_describe_packed(comm, bucket->wire, bucket->segments, bucket->param_count, &bucket->whole);
  bucket->sent = bucket->sum = sent;
  const ad_path_step *first = &bucket->steps[0];
  if (bucket->scatters) AD_TRY(ad_array_after(comm, &sent, first->move, first->axes, first->to, &bucket->sum));
  bucket->pending = sent;
  bucket->pending.dtype = bucket->sum.dtype = bucket->contract.accumulate;
  bucket->earlier = bucket->sum;
  return AD_OK;
}

/* Slots come and go, and later steps begin when they have gone. */
static int relays(const ad_bucket *bucket) {
  return bucket->window >= 0 && bucket->step_count > 1 && !ad_bucket_is_one_array(bucket);
}

static ad_status allocate(ad_reducer *reducer, ad_bucket *bucket) {
  int one = ad_bucket_is_one_array(bucket);
  if (bucket->window < 0) AD_TRY(give_memory(reducer, &bucket->sent));
  if (relays(bucket)) {
    bucket->relayed = bucket->sum;
    bucket->relayed.dtype = bucket->wire;
    AD_TRY(give_memory(reducer, &bucket->relayed));
  }
  if (one) bucket->pending.data = bucket->sent.data;
  if (one && !bucket->scatters) bucket->sum.data = bucket->sent.data;
  if (!bucket->sum.data) AD_TRY(give_memory(reducer, &bucket->sum));
  place_results(reducer, bucket);
  return AD_OK;
}

/* What a node's ranks together read and write when a step's gradients are copied in and what comes out is cast. */
static size_t copied_bytes(const ad_reducer *reducer, const ad_mesh *mesh) {
  ad_group everyone = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(reducer->comm));
  size_t bytes = 0, ranks = ad_comm_shares(reducer->comm, &everyone) ? (size_t)ad_group_size(&everyone) : 1;
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    const ad_bucket *bucket = &reducer->buckets[i];
    bytes += ad_array_bytes(&bucket->pending) + ad_array_bytes(&bucket->sent);
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
    bucket->past_caches = ad_is_past_caches(copied_bytes(reducer, bucket->mesh));
  }
  return AD_OK;
}

ad_status ad_bucket_keep_pending(ad_reducer *reducer, ad_bucket *bucket) {
  bucket->keeps_pending = 1;
  return bucket->pending.data ? AD_OK : give_memory(reducer, &bucket->pending);
}

ad_status ad_bucket_keep_earlier(ad_reducer *reducer, ad_bucket *bucket) {
  return bucket->earlier.data ? AD_OK : give_memory(reducer, &bucket->earlier);
}

static void release(ad_reducer *reducer, ad_bucket *bucket) {
  // Peers may still read and write a bucket that is under way; an error there ends this wait too.
  if (bucket->request.id && ad_comm_wait(reducer->comm, &bucket->request)) bucket->request.id = 0;
  if (bucket->window >= 0) bucket->sent.data = NULL;
  if (bucket->sum.data == bucket->sent.data) bucket->sum.data = NULL;
  if (bucket->pending.data == bucket->sent.data) bucket->pending.data = NULL;
  ad_array_destroy(reducer->comm, &bucket->sent);
  ad_array_destroy(reducer->comm, &bucket->pending);
  ad_array_destroy(reducer->comm, &bucket->sum);
  ad_array_destroy(reducer->comm, &bucket->earlier);
  ad_array_destroy(reducer->comm, &bucket->relayed);
  ad_release(bucket->params);
  ad_release(bucket->segments);
  ad_release(bucket->names);
}

void ad_buckets_release(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) release(reducer, &reducer->buckets[i]);
  ad_release(reducer->buckets);
  ad_slots_release(reducer);
}
