/* Laying gradients out in buckets: which share one, in which order, and their memory. Decided once, from the list of
 * parameters alone, so that all ranks decide alike. */
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "reduce/reducer.h"

/* ---- the path ---- */

static ad_status check_step(const ad_reduced_param *param, ad_path_step step) {
  if (step.move == AD_MOVE_ALL_REDUCE) return AD_OK;
  char axes[96], layout[160], storage[160];
  return ad_fail(
      AD_INVALID,
      "parameter `%s`: its storage \"%s\" needs %s over %s; buckets hold whole gradients, so store it as it is "
      "computed: \"%s\"",
      param->name, ad_layout_print(&param->storage, storage, sizeof storage), ad_move_name(step.move),
      ad_axes_print(step.axes, axes, sizeof axes), ad_layout_print(&param->layout, layout, sizeof layout));
}

static ad_status find_path(const ad_reduced_param *param, ad_bucket *key) {
  ad_status status = ad_layout_path(&param->gradient, &param->storage, key->steps, &key->step_count);
  if (status) return ad_fail_in(status, "parameter `%s`", param->name);
  for (int i = 0; i < key->step_count; i++) AD_TRY(check_step(param, key->steps[i]));
  key->mesh = param->layout.mesh;
  key->contract = param->contract;
  return AD_OK;
}

static int same_contract(const ad_contract *a, const ad_contract *b) {
  return a->param == b->param && a->grad == b->grad && a->raw == b->raw && a->reduce == b->reduce &&
         a->accumulate == b->accumulate;
}

static int same_step(ad_path_step a, ad_path_step b) {
  return a.move == b.move && a.axes == b.axes && a.from == b.from && a.to == b.to;
}

static int same_key(const ad_bucket *a, const ad_bucket *b) {
  if (!ad_mesh_equal(a->mesh, b->mesh) || !same_contract(&a->contract, &b->contract)) return 0;
  if (a->step_count != b->step_count) return 0;
  for (int i = 0; i < a->step_count; i++) {
    if (!same_step(a->steps[i], b->steps[i])) return 0;
  }
  return 1;
}

/* ---- which parameters share a bucket ---- */

static int has_room(const ad_reducer *reducer, const ad_bucket *bucket, const ad_reduced_param *param) {
  size_t bytes = (bucket->numel + param->numel) * ad_dtype_size(bucket->contract.reduce);
  return !bucket->param_count || bytes <= reducer->options.bucket_bytes;
}

/* The youngest bucket with this key; bucket_count if there is none. */
static size_t find_bucket(const ad_reducer *reducer, const ad_bucket *key) {
  for (size_t i = reducer->bucket_count; i-- > 0;) {
    if (same_key(&reducer->buckets[i], key)) return i;
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
  AD_TRY(find_path(param, &key));
  size_t index = find_bucket(reducer, &key);
  if (index < reducer->bucket_count && !has_room(reducer, &reducer->buckets[index], param))
    index = reducer->bucket_count;
  if (index == reducer->bucket_count) AD_TRY(add_bucket(reducer, &key));
  ad_bucket *bucket = &reducer->buckets[index];
  AD_TRY(ad_grow(&bucket->params, bucket->param_count, bucket->param_count + 1));
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

/* On the axes of its path the flat array is what its gradients are; on others every rank has its own elements. */
static void set_layouts(ad_bucket *bucket) {
  bucket->pending = bucket->reduced = ad_layout_all(bucket->mesh, AD_V);
  for (int i = 0; i < bucket->step_count; i++) {
    ad_layout_set(&bucket->pending, bucket->steps[i].axes, bucket->steps[i].from);
    ad_layout_set(&bucket->reduced, bucket->steps[i].axes, bucket->steps[i].to);
  }
}

static void place_results(ad_reducer *reducer, const ad_bucket *bucket) {
  size_t element = ad_dtype_size(bucket->sum.dtype);
  for (size_t i = 0; i < bucket->param_count; i++) {
    ad_reduced_param *param = &reducer->params[bucket->params[i]];
    param->result = ad_array_describe(reducer->comm, bucket->sum.dtype, &param->shape, &param->storage);
    if (bucket->sum.data) param->result.data = (char *)bucket->sum.data + param->offset * element;
  }
}

ad_status ad_buckets_allocate(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    ad_shape shape = {.ndim = 1, .dim = {(int64_t)bucket->numel}};
    set_layouts(bucket);
    AD_TRY(ad_array_create(reducer->comm, bucket->contract.reduce, &shape, &bucket->pending, &bucket->sum));
    bucket->earlier = ad_array_describe(reducer->comm, bucket->contract.reduce, &shape, &bucket->reduced);
    place_results(reducer, bucket);
  }
  return AD_OK;
}

void ad_buckets_release(ad_reducer *reducer) {
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    // Peers may still read and write a bucket that is under way; an error there ends this wait too.
    if (bucket->request.id && ad_comm_wait(reducer->comm, &bucket->request)) bucket->request.id = 0;
    ad_array_destroy(reducer->comm, &bucket->sum);
    ad_array_destroy(reducer->comm, &bucket->earlier);
    ad_release(bucket->params);
  }
  ad_release(reducer->buckets);
}
