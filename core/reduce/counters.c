/* The counters of a bucket: which gradients and microbatches its arrays contain, and which gradients have yet to
 * arrive. */
#include "reduce/reducer.h"

void ad_counters_begin_step(ad_bucket *bucket) {
  bucket->counters.has_earlier = 0;
  bucket->counters.unsent = 0;
}

void ad_counters_begin_sum(ad_bucket *bucket) {
  bucket->counters.has_sum = 0;
  bucket->counters.summed = 0;
}

/* Begins a microbatch. With AD_SYNC_SHARD the microbatch sends the bucket only if the first step of the bucket's path
 * is early (key.early), as a reduce_scatter is; otherwise the bucket keeps accumulating on this rank. */
void ad_counters_begin_microbatch(ad_bucket *bucket, ad_sync sync) {
  bucket->counters.arrived = 0;
  bucket->counters.sync = sync;
  bucket->counters.unsent++;
  bucket->counters.sends = sync == AD_SYNC_ALL || (sync == AD_SYNC_SHARD && bucket->key.early);
}

void ad_counters_arrived(ad_bucket *bucket) { bucket->counters.arrived++; }

void ad_counters_expect(ad_bucket *bucket, int count) { bucket->counters.expected += count; }

/* Returns 1 if the bucket can be sent. In the last microbatch (AD_SYNC_ALL) the gradients that earlier microbatches
 * announced and deferred must have arrived, too. */
int ad_counters_are_complete(const ad_bucket *bucket) {
  int awaits_others = bucket->counters.sync == AD_SYNC_ALL && bucket->counters.expected;
  return bucket->counters.arrived == bucket->members.count && !awaits_others;
}

void ad_counters_sent(ad_bucket *bucket) {
  bucket->counters.summed += bucket->counters.unsent;
  bucket->counters.unsent = 0;
}

void ad_counters_summed(ad_bucket *bucket) { bucket->counters.has_sum = 1; }

void ad_counters_set_aside(ad_bucket *bucket) { bucket->counters.has_earlier = 1; }

void ad_counters_forget(ad_bucket *bucket) { bucket->counters.has_sum = bucket->counters.has_earlier = 0; }
