/* Runs the steps of a bucket's path: each step is one collective, which is posted and waited for here. launch.c decides
 * when a bucket's first step runs. */
#include <math.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "base/injection.h"
#include "kernels/kernels.h"
#include "mesh/mesh.h"
#include "reduce/reducer.h"

static void trace(const ad_reducer *reducer, ad_bucket_event event, size_t index, ad_path_step step) {
  if (!reducer->options.trace) return;
  ad_bucket_step of = {(int)index, step.move, step.axes, ad_array_bytes(&reducer->buckets[index].steps.input)};
  reducer->options.trace(reducer->options.trace_context, event, &of);
}

/* Sets the input of a later step of the path: the sum of the steps before, cast to the communication dtype and
 * scaled. */
static void relay(const ad_reducer *reducer, ad_bucket *bucket) {
  bucket->steps.input = bucket->sum;
  if (ad_bucket_is_one_array(bucket)) return;
  int64_t addends = bucket->counters.summed * ad_bucket_ranks(&bucket->key, bucket->steps.next);
  bucket->steps.input.dtype = bucket->key.comm_dtype;
  bucket->steps.input.scale = ad_scale_for(bucket->key.comm_dtype, addends);
  bucket->steps.input.data = bucket->turn.window < 0 ? bucket->sent.data : bucket->relayed.data;
  if (bucket->sum.data)
    ad_cast_scaled(bucket->steps.input.data, bucket->key.comm_dtype, bucket->sum.data, bucket->sum.dtype,
                   ldexp(1, -bucket->steps.input.scale), ad_array_numel(&bucket->sum));
}

/* Describes the output of a step. If earlier microbatches were already reduce-scattered, a reduce_scatter adds to their
 * sum; any other step overwrites `sum`. */
static ad_status describe_output(const ad_reducer *reducer, const ad_bucket *bucket, const ad_transit *transit,
                                 ad_array *out) {
  *out = bucket->sum;
  if (transit->adds) return AD_OK;
  AD_TRY(ad_array_after_at(reducer->comm, &bucket->steps.input, transit->move, transit->axes, transit->to, out,
                           transit->site));
  out->dtype = bucket->sum.dtype;
  out->scale = 0;
  out->data = bucket->sum.data;
  return AD_OK;
}

static ad_status post(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  ad_transit transit = {.move = step.move,
                        .axes = step.axes,
                        .to = step.to,
                        .accumulate = bucket->key.policy.accumulate,
                        .adds = bucket->steps.adds,
                        .past_caches = bucket->past_caches,
                        .site = AD_HERE,
                        .what = "gradients",
                        .names = bucket->members.names};
  ad_array out;
  ad_leaf_ranges ranges = {0};
  if (ad_reducer_has_leaves(reducer)) ad_leaves_ranges(reducer, bucket, &ranges);
  // An all_reduce over one rank changes no sum: the sums stay where they are, and no ranges are needed.
  int64_t members = ad_mesh_ranks_over(bucket->key.mesh, step.axes);
  if (ranges.leaves && (step.move == AD_MOVE_REDUCE_SCATTER || members > 1)) transit.ranges = &ranges;
  AD_TRY(describe_output(reducer, bucket, &transit, &out));
  // 1: no member has a leaf to sum, so no collective runs
  int is_empty = transit.ranges && ranges.starts[0] == ranges.starts[members];
  if (!is_empty) AD_TRY(ad_transit_post(reducer->comm, &transit, &bucket->steps.input, &out, &bucket->steps.request));
  bucket->sum = out;
  return AD_OK;
}

ad_status ad_bucket_run_step(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  ad_path_step step = bucket->key.steps[bucket->steps.next];
  int rescatters = bucket->key.rescatters && bucket->steps.next == 1;
  bucket->steps.adds = !bucket->steps.next && bucket->key.scatters && bucket->counters.has_sum;
  if (bucket->steps.next)
    relay(reducer, bucket);
  else
    bucket->steps.input = bucket->sent;
  if (rescatters) bucket->sum.data = bucket->rescattered.data;
  if (ad_reducer_has_leaves(reducer)) AD_TRY(ad_leaves_post(reducer, bucket));
  trace(reducer, AD_BUCKET_POST, index, step);
  AD_TRY(post(reducer, bucket, step));
  bucket->steps.next++;
  bucket->steps.unsettled = 1;
  return AD_OK;
}

ad_status ad_bucket_settle(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  if (!bucket->steps.unsettled) return AD_OK;
  ad_path_step step = bucket->key.steps[bucket->steps.next - 1];
  trace(reducer, AD_BUCKET_WAIT, index, step);
  AD_TRY(ad_comm_wait(reducer->comm, &bucket->steps.request));
  bucket->steps.unsettled = 0;
  ad_counters_summed(bucket);
  AD_TRY(ad_bucket_pass(AD_INJECT_REDUCED, reducer, bucket));
  if (ad_reducer_has_leaves(reducer)) ad_leaves_settle(reducer, bucket);
  trace(reducer, AD_BUCKET_DONE, index, step);
  return AD_OK;
}

ad_span ad_bucket_rows_after(const ad_reducer *reducer, const ad_bucket *bucket, size_t member, int steps) {
  ad_span rows = {0, bucket->members.segments[member].rows};
  int64_t rank = ad_comm_rank(reducer->comm);
  for (int k = 0; k < steps; k++) {
    if (bucket->key.steps[k].move != AD_MOVE_REDUCE_SCATTER) continue;
    ad_group group = ad_mesh_group(bucket->key.mesh, bucket->key.steps[k].axes, rank);
    ad_span own = ad_cut(rows.count, ad_group_index(&group, rank), ad_group_size(&group));
    rows = (ad_span){rows.first + own.first, own.count};
  }
  return rows;
}

void ad_bucket_begin_path(const ad_reducer *reducer, ad_bucket *bucket) {
  if (bucket->key.rescatters) bucket->sum = bucket->scattered;
  bucket->steps.next = 0;
  bucket->steps.count = ad_reducer_has_leaves(reducer) ? ad_leaves_steps(reducer, bucket) : bucket->key.step_count;
  bucket->steps.round = reducer->leaves.rounds - 1;
}

int ad_bucket_is_through(const ad_bucket *bucket) { return bucket->steps.next == bucket->steps.count; }
