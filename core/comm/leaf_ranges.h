/* Sums of leaves in a call: computes, from a collective's leaf ranges, which addends members contribute and which
 * results they get. */
#ifndef COMM_LEAF_RANGES_H
#define COMM_LEAF_RANGES_H
#include "comm/call.h"

/* Checks the leaf ranges of a call whose group and types are set already, and writes the nodes that follow from the
 * ranges into the call. Writes nothing if law 10's tree over members gives the same bits: the call is then carried out
 * like any call without leaf ranges. `ranges` may be NULL. Returns the same errors as ad_call_prepare. */
ad_status ad_call_take_ranges(const ad_leaf_ranges *ranges, ad_call *call) AD_CHECKED;
/* Returns 1 if each member contributes exactly one value and gets exactly one result. */
int ad_call_is_even(const ad_call *call);
/* Returns the reduction of result number `result`, and sets *first and *count to the range of its addends in the
 * list of all members' addends. ad_call_reducing_leaves may be called only for calls with leaf ranges. */
ad_reducing ad_call_reducing_leaves(const ad_call *call, uint32_t result, uint32_t *first, uint32_t *count);
static inline ad_reducing ad_call_reducing(const ad_call *call, uint32_t result, uint32_t *first, uint32_t *count) {
  if (call->results) return ad_call_reducing_leaves(call, result, first, count);
  *first = 0;
  *count = call->members;
  return call->reducing;
}

#endif
