/* Launches buckets: decides in which order they are summed, and when. counters.c decides which microbatches send a
 * bucket; path.c runs the reductions of a bucket's path. */
#include "array/array.h"
#include "base/error.h"
#include "base/injection.h"
#include "base/text.h"
#include "reduce/reducer.h"

/* ---- launching and completing buckets ---- */

static ad_status launch(ad_reducer *reducer, size_t index) {
  ad_bucket *bucket = &reducer->buckets[index];
  if (!bucket->counters.sends) return AD_OK;
  AD_TRY(ad_bucket_settle(reducer, index));
  AD_TRY(ad_slot_claim(reducer, index));
  if (ad_reducer_has_leaves(reducer))
    AD_TRY(ad_leaves_complete(reducer, bucket));
  else
    ad_bucket_take_absent(reducer, bucket);
  AD_TRY(ad_bucket_pass(AD_INJECT_LAUNCH, reducer, bucket));
  ad_counters_sent(bucket);
  ad_bucket_begin_path(reducer, bucket);
  ad_slot_send_off(reducer, bucket);
  if (!bucket->key.scatters)
    bucket->sum.layout = bucket->sent.layout;  // `sum` has the layout of `sent` until a step reduces it
  return bucket->steps.count ? ad_bucket_run_step(reducer, index) : AD_OK;
}

static void list_names(const ad_bucket *bucket, char *buffer, size_t size) {
  enum { SHOWN = 3 };
  ad_text text = ad_text_on(buffer, size);
  for (size_t i = 0; i < bucket->members.count && i < SHOWN; i++)
    ad_text_add(&text, "%s`%s`", i ? ", " : "", bucket->members.names[i]);
  if (bucket->members.count > SHOWN) ad_text_add(&text, " and %zu more", bucket->members.count - SHOWN);
}

/* Checks law 4: the executed steps must have led to the layout of the parameters' updates on these axes. */
static ad_status check_reached(const ad_bucket *bucket, ad_axes axes) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type have = bucket->sum.layout.type[axis], want = bucket->updated.type[axis];
    if (have == want || !(axes & AD_AXES(axis))) continue;
    char names[320], have_text[16], want_text[16];
    list_names(bucket, names, sizeof names);
    return ad_fail(AD_TYPE,
                   "the reduced gradient of %s is %s on `%s`, but the storage is %s, so a step of the reduction was "
                   "left out or went over the wrong axes",
                   names, ad_type_print(have, have_text, sizeof have_text), ad_axis_name((ad_axis)axis),
                   ad_type_print(want, want_text, sizeof want_text));
  }
  return AD_OK;
}

/* Returns 1 if the latest microbatch reduces the bucket completely. */
static int is_reduced(const ad_bucket *bucket) { return bucket->counters.sync == AD_SYNC_ALL; }

/* Every bucket runs one step of its path before any bucket runs its next step. This order is the same on all ranks, and
 * steps of different buckets overlap. */
ad_status ad_buckets_complete(ad_reducer *reducer) {
  for (int more = 1; more;) {
    more = 0;
    for (size_t i = 0; i < reducer->bucket_count; i++) {
      if (!is_reduced(&reducer->buckets[i])) continue;
      AD_TRY(ad_bucket_settle(reducer, i));
      if (ad_bucket_is_through(&reducer->buckets[i])) continue;
      AD_TRY(ad_bucket_run_step(reducer, i));
      more = 1;
    }
  }
  for (size_t i = 0; i < reducer->bucket_count; i++) {
    ad_bucket *bucket = &reducer->buckets[i];
    if (!is_reduced(bucket)) continue;
    AD_TRY(check_reached(bucket, bucket->steps.count < bucket->key.step_count ? AD_AXES_DP : AD_AXES_ALL));
    if (ad_reducer_has_leaves(reducer)) AD_TRY(ad_leaves_check(reducer, bucket));
  }
  return AD_OK;
}

/* ---- the order of launches ---- */

/* *out: the index of the bucket that is launched at position `place` of the launch order. This is `place` itself,
 * unless a mutation at the injection point changes it. `launches` is 1 if the bucket is about to be launched, 0 if the
 * caller only asks whether the bucket is ready. */
static ad_status bucket_at(ad_reducer *reducer, size_t place, int launches, size_t *out) {
  ad_order_passing passing = {reducer, place, launches, AD_OK};
  ad_inject(AD_INJECT_ORDER, &passing);
  *out = passing.bucket;
  return passing.status;
}

ad_status ad_buckets_launch_ready(ad_reducer *reducer, int all) {
  while (reducer->launched < reducer->bucket_count) {
    size_t next;
    AD_TRY(bucket_at(reducer, reducer->launched, 0, &next));
    if (!all && !ad_counters_are_complete(&reducer->buckets[next])) return AD_OK;
    AD_TRY(bucket_at(reducer, reducer->launched, 1, &next));
    AD_TRY(launch(reducer, next));
    reducer->launched++;
  }
  return AD_OK;
}
