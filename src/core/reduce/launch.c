/* Summing a bucket over its path: posting, waiting, and in which order. Which microbatches send it is decided in
 * reducer.c. */
#include <math.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/seams.h"
#include "base/text.h"
#include "reduce/reducer.h"

static void trace(const ad_reducer *reducer, ad_bucket_event event, size_t index, ad_path_step step) {
  if (!reducer->options.trace) return;
  ad_bucket_step of = {(int)index, step.move, step.axes, ad_array_bytes(&reducer->buckets[index].input)};
  reducer->options.trace(reducer->options.trace_context, event, &of);
}

static ad_status pass(ad_seam seam, ad_reducer *reducer, ad_bucket *bucket) {
  ad_bucket_passing passing = {reducer, bucket, AD_OK};
  ad_seam_pass(seam, &passing);
  return passing.status;
}

/* ---- one step ---- */

/* What a later step reads: the sum so far, in the dtype and scale that travel. */
static void relay(const ad_reducer *reducer, ad_bucket *bucket) {
  bucket->input = bucket->sum;
  if (ad_bucket_is_one_array(bucket)) return;
  int64_t addends = bucket->summed * ad_bucket_ranks(bucket, bucket->next_step);
  bucket->input.dtype = bucket->wire;
  bucket->input.scale = ad_scale_for(bucket->wire, addends);
  bucket->input.data = bucket->window < 0 ? bucket->sent.data : bucket->relayed.data;
  if (bucket->sum.data)
    ad_cast_scaled(bucket->input.data, bucket->wire, bucket->sum.data, bucket->sum.dtype,
                   ldexp(1, -bucket->input.scale), ad_array_numel(&bucket->sum));
}

/* The sum of earlier microbatches, reduced as far, is added to; any other that stands there is overwritten. */
static ad_status describe_output(const ad_reducer *reducer, const ad_bucket *bucket, const ad_transit *transit,
                                 ad_array *out) {
  *out = bucket->sum;
  if (transit->adds) return AD_OK;
  AD_TRY(
      ad_array_after_at(reducer->comm, &bucket->input, transit->move, transit->axes, transit->to, out, transit->site));
  out->dtype = bucket->sum.dtype;
  out->scale = 0;
  out->data = bucket->sum.data;
  return AD_OK;
}

static ad_status post(ad_reducer *reducer, ad_bucket *bucket, ad_path_step step) {
  ad_transit transit = {.move = step.move,
                        .axes = step.axes,
                        .to = step.to,
                        .accumulate = bucket->contract.accumulate,
                        .adds = step.move == AD_MOVE_REDUCE_SCATTER && bucket->has_sum,
                        .past_caches = bucket->past_caches,
                        .site = AD_HERE,
                        .what = "gradients",
                        .names = bucket->names};
  ad_array out;
  AD_TRY(describe_output(reducer, bucket, &transit, &out));
  AD_TRY(ad_transit_post(reducer->comm, &transit, &bucket->input, &out, &bucket->request));
  bucket->sum = out;
  return AD_OK;
}

static ad_status run_step(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  ad_path_step step = bucket->steps[bucket->next_step];
  if (bucket->next_step)
    relay(reducer, bucket);
  else
    bucket->input = bucket->sent;
  trace(reducer, AD_BUCKET_POST, index, step);
  AD_TRY(post(reducer, bucket, step));
  bucket->next_step++;
  bucket->unsettled = 1;
  return AD_OK;
}

ad_status ad_bucket_settle(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  if (!bucket->unsettled) return AD_OK;
  ad_path_step step = bucket->steps[bucket->next_step - 1];
  trace(reducer, AD_BUCKET_WAIT, index, step);
  AD_TRY(ad_comm_wait(reducer->comm, &bucket->request));
  bucket->unsettled = 0;
  bucket->has_sum = 1;
  AD_TRY(pass(AD_SEAM_REDUCED, reducer, bucket));
  trace(reducer, AD_BUCKET_DONE, index, step);
  return AD_OK;
}

/* ---- one bucket ---- */

int64_t ad_bucket_ranks(const ad_bucket *bucket, int step) {
  int64_t ranks = 1;
  for (int i = 0; i <= step && i < bucket->step_count; i++)
    ranks *= ad_mesh_ranks_over(bucket->mesh, bucket->steps[i].axes);
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
  if (!bucket->sends) return AD_OK;
  AD_TRY(ad_bucket_settle(reducer, index));
  AD_TRY(ad_slot_claim(reducer, index));
  take_absent(reducer, bucket);
  AD_TRY(pass(AD_SEAM_LAUNCH, reducer, bucket));
  bucket->summed += bucket->unsent;
  bucket->unsent = 0;
  bucket->next_step = 0;
  ad_slot_send_off(reducer, bucket);
  if (!bucket->scatters) bucket->sum.layout = bucket->sent.layout;  // until a step reduces it
  return bucket->step_count ? run_step(reducer, index) : AD_OK;
}

static void list_names(const ad_bucket *bucket, char *buffer, size_t size) {
  enum { SHOWN = 3 };
  ad_text text = ad_text_on(buffer, size);
  for (size_t i = 0; i < bucket->param_count && i < SHOWN; i++)
    ad_text_add(&text, "%s`%s`", i ? ", " : "", bucket->names[i]);
  if (bucket->param_count > SHOWN) ad_text_add(&text, " and %zu more", bucket->param_count - SHOWN);
}

/* Law 4: what was executed has brought the sum to where the parameters are stored. */
static ad_status check_stored(const ad_bucket *bucket) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type have = bucket->sum.layout.type[axis], want = bucket->stored.type[axis];
    if (have == want) continue;
    char names[320], have_text[16], want_text[16];
    list_names(bucket, names, sizeof names);
    return ad_fail(
        AD_TYPE,
        "the reduced gradient of %s is %s on `%s`, where the storage is %s: a step of its reduction was left "
        "out or went over other axes",
        names, ad_type_print(have, have_text, sizeof have_text), ad_axis_name((ad_axis)axis),
        ad_type_print(want, want_text, sizeof want_text));
  }
  return AD_OK;
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
  for (size_t i = 0; i < reducer->bucket_count; i++) AD_TRY(check_stored(&reducer->buckets[i]));
  return AD_OK;
}

/* ---- in which order ---- */

/* The bucket that is launched in this place: that of its number. */
static ad_status bucket_at(ad_reducer *reducer, size_t place, int launches, size_t *out) {
  ad_order_passing passing = {reducer, place, launches, AD_OK};
  ad_seam_pass(AD_SEAM_ORDER, &passing);
  *out = passing.bucket;
  return passing.status;
}

/* All that is added to it is there: in the last microbatch what earlier ones left for later too. */
static int is_complete(const ad_reducer *reducer, const ad_bucket *bucket) {
  int awaits_others = reducer->sync == AD_SYNC_ALL && bucket->expected;
  return bucket->arrived == bucket->param_count && !awaits_others;
}

ad_status ad_buckets_launch_ready(ad_reducer *reducer, int all) {
  while (reducer->launched < reducer->bucket_count) {
    size_t next;
    AD_TRY(bucket_at(reducer, reducer->launched, 0, &next));
    if (!all && !is_complete(reducer, &reducer->buckets[next])) return AD_OK;
    AD_TRY(bucket_at(reducer, reducer->launched, 1, &next));
    AD_TRY(launch(reducer, next));
    reducer->launched++;
  }
  return AD_OK;
}
