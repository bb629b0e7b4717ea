/* The tally of a bucket: which gradients and microbatches its arrays hold, and what is still to come. */
#include "reduce/reducer.h"

void ad_tally_begin_step(ad_bucket *bucket) {
  bucket->tally.has_earlier = 0;
  bucket->tally.unsent = 0;
}

void ad_tally_begin_sum(ad_bucket *bucket) {
  bucket->tally.has_sum = 0;
  bucket->tally.summed = 0;
}

/* With AD_SYNC_SHARD only a reduce_scatter is worth sending early: without one the bucket keeps its sum. */
void ad_tally_begin_microbatch(ad_bucket *bucket, ad_sync sync) {
  bucket->tally.arrived = 0;
  bucket->tally.unsent++;
  bucket->tally.sends = sync == AD_SYNC_ALL || (sync == AD_SYNC_SHARD && bucket->key.scatters);
}

void ad_tally_arrived(ad_bucket *bucket) { bucket->tally.arrived++; }

void ad_tally_expect(ad_bucket *bucket, int count) { bucket->tally.expected += count; }

/* In the last microbatch (AD_SYNC_ALL) gradients that earlier microbatches left for later must be there too. */
int ad_tally_is_complete(const ad_bucket *bucket, ad_sync sync) {
  int awaits_others = sync == AD_SYNC_ALL && bucket->tally.expected;
  return bucket->tally.arrived == bucket->members.count && !awaits_others;
}

void ad_tally_sent(ad_bucket *bucket) {
  bucket->tally.summed += bucket->tally.unsent;
  bucket->tally.unsent = 0;
}

void ad_tally_summed(ad_bucket *bucket) { bucket->tally.has_sum = 1; }

void ad_tally_set_aside(ad_bucket *bucket) { bucket->tally.has_earlier = 1; }

void ad_tally_forget(ad_bucket *bucket) { bucket->tally.has_sum = bucket->tally.has_earlier = 0; }
