/* Sums of leaves in a call: what a collective's leaf ranges say about its addends and its results. */
#ifndef COMM_LEAF_RANGES_H
#define COMM_LEAF_RANGES_H
#include "comm/call.h"

/* Checks the leaf ranges of a call whose group and types are set, and keeps what follows from them in the call. Keeps
 * nothing if law 10's tree over members gives the same bits: then the call is one without leaf ranges, and takes the ways
 * of such a call. `ranges` may be NULL. Errors as those of ad_call_prepare. */
ad_status ad_call_take_ranges(const ad_leaf_ranges *ranges, ad_call *call) AD_CHECKED;
/* Returns 1 if each member hands in one value and gets one. */
int ad_call_is_even(const ad_call *call);
/* Returns how result number `result` is summed, and sets *first and *count to its addends among those of all members.
 * ad_call_reducing_leaves: only of calls with leaf ranges. */
ad_reducing ad_call_reducing_leaves(const ad_call *call, uint32_t result, uint32_t *first, uint32_t *count);
static inline ad_reducing ad_call_reducing(const ad_call *call, uint32_t result, uint32_t *first, uint32_t *count) {
  if (call->results) return ad_call_reducing_leaves(call, result, first, count);
  *first = 0;
  *count = call->members;
  return call->reducing;
}

#endif
