/* Summing a bucket over its path: posting, waiting, and the known mistakes that a reducer makes on that way. When a
 * bucket is launched is decided in reducer.c. */
#include "array/array.h"
#include "base/kernels.h"
#include "base/switches.h"
#include "reduce/reducer.h"

static void trace(const ad_reducer *reducer, ad_bucket_event event, size_t index) {
  if (!reducer->options.trace) return;
  reducer->options.trace(reducer->options.trace_context, event, (int)index,
                         ad_array_bytes(&reducer->buckets[index].sum));
}

/* ---- planted mistakes ---- */

static ad_axes planted_axes(ad_switch which, ad_axes axes) {
  if (!ad_switched(which)) return 0;
  ad_axes planted = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if ((axes & AD_AXES(axis)) && ad_switched_on_axis(which, ad_axis_name((ad_axis)axis))) planted |= AD_AXES(axis);
  }
  return planted;
}

static int is_second_of(const ad_reducer *reducer, const ad_bucket *bucket, ad_axes axes) {
  ad_group group = ad_array_group(reducer->comm, &bucket->sum, axes);
  return ad_group_index(&group, ad_comm_rank(reducer->comm)) == 1;
}

/* The array that is handed to the collective: the bucket, or one element less of it. */
static void shorten(const ad_reducer *reducer, const ad_bucket *bucket, ad_axes axes, ad_array *array) {
  if (!ad_switched(AD_SWITCH_BUCKET_SIZE) || !bucket->numel || !is_second_of(reducer, bucket, axes)) return;
  array->shape.dim[0]--;
  array->local.dim[0]--;
}

static void average(ad_reducer *reducer, ad_bucket *bucket, ad_axes axes) {
  ad_axes planted = planted_axes(AD_SWITCH_AVERAGE, axes);
  if (!planted || !bucket->sum.data) return;
  ad_group group = ad_array_group(reducer->comm, &bucket->sum, planted);
  ad_cast_scaled(bucket->sum.data, bucket->sum.dtype, bucket->sum.data, bucket->sum.dtype,
                 1 / (double)ad_group_size(&group), bucket->numel);
}

static ad_status reduce_again(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  ad_axes planted = planted_axes(AD_SWITCH_DOUBLE_REDUCTION, step.axes);
  if (!planted) return AD_OK;
  ad_array claimed = bucket->sum;
  ad_layout_set(&claimed.layout, planted, step.from);
  ad_array out;
  AD_TRY(ad_array_after(reducer->comm, &claimed, step.move, planted, step.to, AD_HERE, &out));
  out.data = claimed.data;
  return ad_array_move(reducer->comm, &claimed, step.move, planted, step.to, bucket->contract.accumulate, AD_HERE,
                       &out);
}

/* ---- one bucket ---- */

static void zero_absent(ad_reducer *reducer, const ad_bucket *bucket) {
  for (size_t i = 0; i < bucket->param_count; i++) {
    ad_reduced_param *param = &reducer->params[bucket->params[i]];
    if (!param->filled && param->result.data) memset(param->result.data, 0, ad_array_bytes(&param->result));
    param->filled = 1;
  }
}

static ad_status post_step(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  ad_axes axes = step.axes & ~planted_axes(AD_SWITCH_SKIP_REDUCTION, step.axes);
  average(reducer, bucket, step.axes);
  ad_array in = bucket->sum, out;
  shorten(reducer, bucket, axes, &in);
  AD_TRY(ad_array_after(reducer->comm, &in, step.move, axes, step.to, AD_HERE, &out));
  out.data = in.data;
  return ad_array_post(reducer->comm, &in, step.move, axes, step.to, bucket->contract.accumulate, AD_HERE, &out,
                       &bucket->request);
}

static int stays_unsynchronised(const ad_reducer *reducer) {
  return ad_switched(AD_SWITCH_FIRST_STEP) && reducer->steps == 0;
}

ad_status ad_bucket_launch(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  zero_absent(reducer, bucket);
  bucket->launched = 1;
  trace(reducer, AD_BUCKET_POST, index);
  if (!bucket->step_count || stays_unsynchronised(reducer)) return AD_OK;
  return post_step(reducer, bucket, bucket->steps[0]);
}

static ad_status wait_step(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  AD_TRY(ad_comm_wait(reducer->comm, &bucket->request));
  ad_layout_set(&bucket->sum.layout, step.axes, step.to);
  return reduce_again(reducer, bucket, step);
}

ad_status ad_bucket_complete(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  trace(reducer, AD_BUCKET_WAIT, index);
  for (int i = 0; i < bucket->step_count && !stays_unsynchronised(reducer); i++) {
    if (i > 0) AD_TRY(post_step(reducer, bucket, bucket->steps[i]));
    AD_TRY(wait_step(reducer, bucket, bucket->steps[i]));
  }
  bucket->sum.layout = bucket->reduced;
  trace(reducer, AD_BUCKET_DONE, index);
  return AD_OK;
}

/* ---- in which order ---- */

static int same_group(const ad_bucket *a, const ad_bucket *b) {
  return a->step_count && b->step_count && ad_mesh_equal(a->mesh, b->mesh) && a->steps[0].axes == b->steps[0].axes;
}

/* The first two launches over one group change places on one rank; 0 if there are no two. */
static int find_swap(const ad_reducer *reducer, size_t *first, size_t *second) {
  for (*first = 0; *first < reducer->bucket_count; ++*first) {
    for (*second = *first + 1; *second < reducer->bucket_count; ++*second) {
      if (same_group(&reducer->buckets[*first], &reducer->buckets[*second])) return 1;
    }
  }
  return 0;
}

static int disorders(const ad_reducer *reducer) {
  if (!ad_switched(AD_SWITCH_BUCKET_ORDER) || !reducer->roster_count) return 0;
  return ad_group_index(&reducer->rosters[0].group, ad_comm_rank(reducer->comm)) == 1;
}

static size_t bucket_at(const ad_reducer *reducer, size_t position) {
  size_t first, second;
  if (!disorders(reducer) || !find_swap(reducer, &first, &second)) return position;
  return position == first ? second : position == second ? first : position;
}

static ad_status launch_next(ad_reducer *reducer) {
  size_t first, second;
  // With one bucket, what can be out of order is the comparison that follows it.
  if (disorders(reducer) && !find_swap(reducer, &first, &second)) AD_TRY(ad_rosters_post_presence(reducer));
  AD_TRY(ad_bucket_launch(reducer, bucket_at(reducer, reducer->launched)));
  reducer->launched++;
  return AD_OK;
}

ad_status ad_buckets_launch_ready(ad_reducer *reducer, int all) {
  while (reducer->launched < reducer->bucket_count) {
    const ad_bucket *next = &reducer->buckets[bucket_at(reducer, reducer->launched)];
    if (!all && next->arrived < next->param_count) return AD_OK;
    AD_TRY(launch_next(reducer));
  }
  return AD_OK;
}
