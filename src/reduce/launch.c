/* Summing a bucket over its path: posting, waiting, and in which order. Which microbatches send it is decided in
 * reducer.c; the mistakes that can be planted on the way are in mistakes.c. */
#include <math.h>
#include "array/array.h"
#include "base/kernels.h"
#include "reduce/reducer.h"

static void trace(const ad_reducer *reducer, ad_bucket_event event, size_t index) {
  if (!reducer->options.trace) return;
  reducer->options.trace(reducer->options.trace_context, event, (int)index,
                         ad_array_bytes(&reducer->buckets[index].sent));
}

/* ---- one step ---- */

/* What the sum forms of where nothing travels. */
static void take_own(const ad_bucket *bucket, ad_path_step step, int64_t rank) {
  ad_group group = ad_mesh_group(bucket->mesh, step.axes, rank);
  int64_t members = ad_group_size(&group), index = ad_group_index(&group, rank);
  int scatters = step.move == AD_MOVE_REDUCE_SCATTER;
  ad_segment all = {(int64_t)bucket->kept, 1};
  ad_reducing how = {.dtype = bucket->wire, .accumulate = bucket->contract.accumulate, .out_dtype = bucket->sum.dtype};
  how.shift = bucket->input.scale;
  how.adds = scatters && bucket->has_sum;
  const char *from = bucket->input.data;
  char *to = bucket->sum.data;
  for (size_t i = 0; i < (scatters ? bucket->param_count : 1); i++) {
    ad_segment segment = scatters ? bucket->segments[i] : all;
    ad_span rows = scatters ? ad_cut(segment.rows, index, members) : (ad_span){0, segment.rows};
    const void *source = from + (size_t)rows.first * segment.row * ad_dtype_size(bucket->wire);
    void *out = to;
    ad_reduce(&out, 1, &source, 1, &how, (size_t)rows.count * segment.row);
    from += (size_t)segment.rows * segment.row * ad_dtype_size(bucket->wire);
    to += (size_t)rows.count * segment.row * ad_dtype_size(bucket->sum.dtype);
  }
}

static ad_collective describe_call(const ad_reducer *reducer, const ad_bucket *bucket, ad_path_step step) {
  int scatters = step.move == AD_MOVE_REDUCE_SCATTER;
  ad_axes axes = step.axes & ~ad_planted_axes(AD_SWITCH_SKIP_REDUCTION, step.axes);
  return (ad_collective){.op = scatters ? AD_REDUCE_SCATTER : AD_ALL_REDUCE,
                         .group = ad_mesh_group(bucket->mesh, axes, ad_comm_rank(reducer->comm)),
                         .in = bucket->input.data,
                         .out = bucket->sum.data,
                         .count = bucket->kept,
                         .dtype = bucket->wire,
                         .accumulate = bucket->contract.accumulate,
                         .out_dtype = bucket->sum.dtype,
                         .in_scale = bucket->input.scale,
                         .adds = scatters && bucket->has_sum,
                         .segments = scatters ? bucket->segments : NULL,
                         .segment_count = scatters ? bucket->param_count : 0,
                         .past_caches = bucket->past,
                         .site = AD_HERE};
}

static ad_status post(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  ad_collective call = describe_call(reducer, bucket, step);
  if (!ad_plant_shortens(reducer, bucket, step.axes)) return ad_comm_post(reducer->comm, &call, &bucket->request);
  // The planted mistake: one row, or one element, less.
  size_t last = bucket->param_count - 1;
  while (last && !bucket->segments[last].rows) last--;
  call.count--;
  bucket->segments[last].rows--;
  ad_status status = ad_comm_post(reducer->comm, &call, &bucket->request);
  bucket->segments[last].rows++;
  return status;
}

/* Law 6: what is added to the sum of earlier microbatches was reduced as far as that, and both are unscaled. */
static ad_status check_like(const ad_bucket *bucket, ad_path_step step) {
  ad_array incoming = bucket->sum;
  incoming.layout = bucket->whole;
  incoming.scale = 0;
  ad_layout_set(&incoming.layout, step.axes, step.to);
  return bucket->has_sum ? ad_array_check_addend(&bucket->sum, &incoming, AD_HERE) : AD_OK;
}

/* The sum so far, as it travels to the next ranks. */
static void relay(const ad_reducer *reducer, ad_bucket *bucket) {
  bucket->input = bucket->sum;
  if (ad_bucket_is_one_array(bucket)) return;
  int64_t addends = bucket->summed * ad_bucket_ranks(reducer, bucket, bucket->next_step);
  bucket->input.dtype = bucket->wire;
  bucket->input.scale = ad_scale_for(bucket->wire, addends);
  bucket->input.data = bucket->sent.data;
  if (bucket->sum.data)
    ad_cast_scaled(bucket->input.data, bucket->wire, bucket->sum.data, bucket->sum.dtype,
                   ldexp(1, -bucket->input.scale), bucket->kept);
}

static ad_status run_step(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  ad_path_step step = bucket->steps[bucket->next_step];
  if (bucket->next_step)
    relay(reducer, bucket);
  else
    bucket->input = bucket->sent;
  if (step.move == AD_MOVE_REDUCE_SCATTER) AD_TRY(check_like(bucket, step));
  trace(reducer, AD_BUCKET_POST, index);
  if (!ad_comm_is_dry(reducer->comm)) {
    AD_TRY(ad_plant_before_step(reducer, bucket, step));
    if (ad_plant_unreduced(reducer, step))
      take_own(bucket, step, ad_comm_rank(reducer->comm));
    else
      AD_TRY(post(reducer, bucket, step));
  }
  bucket->next_step++;
  bucket->unsettled = 1;
  return AD_OK;
}

ad_status ad_bucket_settle(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  if (!bucket->unsettled) return AD_OK;
  trace(reducer, AD_BUCKET_WAIT, index);
  AD_TRY(ad_comm_wait(reducer->comm, &bucket->request));
  bucket->unsettled = 0;
  bucket->has_sum = 1;
  ad_path_step step = bucket->steps[bucket->next_step - 1];
  ad_layout_set(&bucket->sum.layout, step.axes, step.to);
  if (bucket->sum.data) ad_plant_after_step(reducer, bucket, step);
  trace(reducer, AD_BUCKET_DONE, index);
  return AD_OK;
}

/* ---- one bucket ---- */

int64_t ad_bucket_ranks(const ad_reducer *reducer, const ad_bucket *bucket, int step) {
  int64_t ranks = 1;
  for (int i = 0; i <= step && i < bucket->step_count; i++) {
    ad_group group = ad_mesh_group(bucket->mesh, bucket->steps[i].axes, ad_comm_rank(reducer->comm));
    ranks *= ad_group_size(&group);
  }
  return ranks;
}

/* Parameters that did not arrive in this microbatch go with what they have pending; from here on nothing is. */
static void take_absent(ad_reducer *reducer, ad_bucket *bucket) {
  for (size_t i = 0; i < bucket->param_count; i++) {
    ad_reduced_param *param = &reducer->params[bucket->params[i]];
    if (!param->arrived) ad_bucket_take(bucket, param, NULL);
    param->filled = 0;
  }
}

static ad_status launch(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  bucket->launched = 1;
  if (!bucket->sends) return AD_OK;
  AD_TRY(ad_bucket_settle(reducer, index));
  take_absent(reducer, bucket);
  AD_TRY(ad_plant_before_launch(reducer, bucket));
  bucket->summed += bucket->unsent;
  bucket->unsent = 0;
  bucket->next_step = 0;
  return bucket->step_count ? run_step(reducer, index) : AD_OK;
}

/* All buckets take a step before any takes the next: the order is the same on all ranks, and steps overlap. */
ad_status ad_buckets_complete(ad_reducer *reducer) {
  for (int more = 1; more;) {
    more = 0;
    for (size_t i = 0; i < reducer->bucket_count; i++) {
      AD_TRY(ad_bucket_settle(reducer, i));
      if (reducer->buckets[i].next_step == reducer->buckets[i].step_count) continue;
      AD_TRY(run_step(reducer, i));
      more = 1;
    }
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) reducer->buckets[i].sum.layout = reducer->buckets[i].reduced;
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
  AD_TRY(launch(reducer, bucket_at(reducer, reducer->launched)));
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
