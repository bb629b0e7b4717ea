/* The known mistakes of reducers, planted on a bucket's way when their switch is on. Nothing here is part of what the
 * reducer does. */
#include "array/array.h"
#include "base/kernels.h"
#include "reduce/reducer.h"

ad_axes ad_planted_axes(ad_switch which, ad_axes axes) {
  if (!ad_switched(which)) return 0;
  ad_axes planted = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if ((axes & AD_AXES(axis)) && ad_switched_on_axis(which, ad_axis_name((ad_axis)axis))) planted |= AD_AXES(axis);
  }
  return planted;
}

static int64_t ranks_over(const ad_reducer *reducer, const ad_bucket *bucket, ad_axes axes) {
  ad_group group = ad_mesh_group(bucket->mesh, axes, ad_comm_rank(reducer->comm));
  return ad_group_size(&group);
}

static void multiply(const ad_array *array, double factor) {
  if (array->data) ad_cast_scaled(array->data, array->dtype, array->data, array->dtype, factor, ad_array_numel(array));
}

/* ---- before a bucket is sent ---- */

/* The sum of earlier microbatches waits to be added when all is reduced. Law 6 refuses that. */
static ad_status put_partial_off(ad_reducer *reducer, ad_bucket *bucket) {
  int planted = ad_switched(AD_SWITCH_PARTIAL_AFTER) && reducer->sync == AD_SYNC_ALL && bucket->scatters;
  if (!planted || !bucket->has_sum) return AD_OK;
  AD_TRY(ad_bucket_keep_earlier(reducer, bucket));
  if (bucket->sum.data) ad_copy(bucket->earlier.data, bucket->sum.data, ad_array_bytes(&bucket->sum));
  bucket->earlier.layout = bucket->sum.layout;
  bucket->has_earlier = 1;
  bucket->has_sum = 0;
  return AD_OK;
}

/* One over the ranks of all groups, where only the first group is summed over. */
static void apply_both_factors(const ad_reducer *reducer, const ad_bucket *bucket) {
  if (!ad_switched(AD_SWITCH_BOTH_FACTORS) || reducer->sync == AD_SYNC_ALL) return;
  int64_t all = ad_bucket_ranks(reducer, bucket, bucket->step_count), first = ad_bucket_ranks(reducer, bucket, 0);
  multiply(&bucket->sent, (double)first / (double)all);
}

/* The factor 1 was stored as f64 and is read as f32. */
static void apply_factor_of_wrong_width(const ad_bucket *bucket) {
  if (!ad_switched(AD_SWITCH_FACTOR_WIDTH)) return;
  double stored = 1;
  float read;
  memcpy(&read, &stored, sizeof read);
  multiply(&bucket->sent, (double)read);
}

ad_status ad_plant_before_launch(ad_reducer *reducer, ad_bucket *bucket) {
  apply_both_factors(reducer, bucket);
  apply_factor_of_wrong_width(bucket);
  return put_partial_off(reducer, bucket);
}

/* ---- before a step ---- */

static void average(const ad_reducer *reducer, const ad_bucket *bucket, ad_axes axes) {
  ad_axes planted = ad_planted_axes(AD_SWITCH_AVERAGE, axes);
  if (planted) multiply(&bucket->input, 1 / (double)ranks_over(reducer, bucket, planted));
}

static ad_status reduce_before(ad_reducer *reducer, const ad_bucket *bucket, ad_axes axes) {
  ad_axes planted = ad_planted_axes(AD_SWITCH_DOUBLE_REDUCTION, axes);
  const ad_array *input = &bucket->input;
  if (!planted) return AD_OK;
  ad_collective call = {.op = AD_ALL_REDUCE, .in = input->data, .out = input->data, .count = ad_array_numel(input)};
  call.group = ad_mesh_group(bucket->mesh, planted, ad_comm_rank(reducer->comm));
  call.dtype = input->dtype;
  call.accumulate = bucket->contract.accumulate;
  call.site = AD_HERE;
  return ad_comm_run(reducer->comm, &call);
}

/* What a collective finds whose bucket was taken for something else before it read: the second half is gone. */
static void reuse(const ad_bucket *bucket) {
  size_t bytes = ad_array_bytes(&bucket->input);
  if (ad_switched(AD_SWITCH_REUSED_EARLY) && !bucket->next_step)
    memset((char *)bucket->input.data + bytes / 2, 0, bytes - bytes / 2);
}

ad_status ad_plant_before_step(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  average(reducer, bucket, step.axes);
  reuse(bucket);
  return reduce_before(reducer, bucket, step.axes);
}

int ad_plant_unreduced(const ad_reducer *reducer, ad_path_step step) {
  if (ad_switched(AD_SWITCH_FIRST_STEP) && reducer->steps == 0) return 1;
  return step.move == AD_MOVE_REDUCE_SCATTER && ad_planted_axes(AD_SWITCH_SKIP_REDUCTION, step.axes);
}

int ad_plant_shortens(const ad_reducer *reducer, const ad_bucket *bucket, ad_axes axes) {
  if (!ad_switched(AD_SWITCH_BUCKET_SIZE) || !bucket->numel || !bucket->kept) return 0;
  ad_group group = ad_mesh_group(bucket->mesh, axes, ad_comm_rank(reducer->comm));
  return ad_group_index(&group, ad_comm_rank(reducer->comm)) == 1;
}

/* ---- after a step ---- */

static void round_to_narrow(const ad_array *array) {
  uint16_t narrow[512];
  size_t numel = ad_array_numel(array), size = ad_dtype_size(array->dtype);
  for (size_t at = 0; at < numel; at += 512) {
    size_t n = numel - at < 512 ? numel - at : 512;
    char *values = (char *)array->data + at * size;
    ad_cast(narrow, AD_BF16, values, array->dtype, n);
    ad_cast(values, array->dtype, narrow, AD_BF16, n);
  }
}

/* Where shards are padded to equal rows, the row that fills a smaller one up is counted with it. */
static void count_padding(const ad_reducer *reducer, const ad_bucket *bucket, ad_path_step step) {
  ad_group group = ad_mesh_group(bucket->mesh, step.axes, ad_comm_rank(reducer->comm));
  int64_t members = ad_group_size(&group), index = ad_group_index(&group, ad_comm_rank(reducer->comm));
  size_t size = ad_dtype_size(bucket->sum.dtype);
  char *end = bucket->sum.data;
  for (size_t i = 0; i < bucket->param_count; i++) {
    ad_segment segment = bucket->segments[i];
    int64_t own = ad_cut(segment.rows, index, members).count, padded = (segment.rows + members - 1) / members;
    end += (size_t)own * segment.row * size;
    char *last = end - segment.row * size;
    if (own && own < padded) ad_accumulate(last, bucket->sum.dtype, last, bucket->sum.dtype, 1, segment.row);
  }
}

void ad_plant_after_step(const ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  if (ad_switched(AD_SWITCH_NARROW_ACCUMULATE)) round_to_narrow(&bucket->sum);
  if (ad_switched(AD_SWITCH_ADD_TO_ITSELF) && ranks_over(reducer, bucket, step.axes) == 1) multiply(&bucket->sum, 2);
  int pads = ad_switched(AD_SWITCH_PADDING_COUNTED) && step.move == AD_MOVE_REDUCE_SCATTER;
  if (pads) count_padding(reducer, bucket, step);
}
