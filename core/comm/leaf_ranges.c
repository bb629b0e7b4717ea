/* Sums of leaves by the aligned tree (kernels/nodes.h): checks a call's leaf ranges, and finds the nodes of the tree
 * that members contribute and those that they get. No values are read or written here. */
#include "comm/leaf_ranges.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "kernels/nodes.h"

// Checks the call's operation, dtypes and scales: between leaf and sum nothing may be rounded (law 8).
static ad_status check_summed(const ad_call *call) {
  const ad_reducing *how = &call->reducing;
  if (!call->operation->reduces || !ad_dtype_is_float(call->dtype) || how->reduction != AD_SUM)
    return AD_REFUSE_CALL(call, "%s",
                          "`ranges` is set, but only sums of floats take leaf ranges; set `ranges` to NULL");
  if (how->accumulate == call->dtype && how->out_dtype == call->dtype && !call->in_scale && !call->out_scale)
    return AD_OK;
  return AD_REFUSE_CALL(call,
                        "sums of leaves must have one dtype and no scale, because nothing may be rounded on the way, "
                        "but `dtype` is %s, sums are formed in %s and written as %s, with scales %d and %d",
                        ad_dtype_name(call->dtype), ad_dtype_name(how->accumulate), ad_dtype_name(how->out_dtype),
                        call->in_scale, call->out_scale);
}

static ad_status check_ranges(const ad_call *call, const ad_leaf_ranges *ranges) {
  const int64_t *starts = ranges->starts;
  AD_TRY(check_summed(call));
  if (!starts) return AD_REFUSE_CALL(call, "%s", "`ranges` has no `starts`; give where each member's leaves start");
  if (ranges->leaves < 1 || ranges->leaves > UINT32_MAX)
    return AD_REFUSE_CALL(call, "`ranges` has %" PRId64 " leaves, but must have 1 to %" PRId64, ranges->leaves,
                          (int64_t)UINT32_MAX);
  for (uint32_t i = 0; i <= call->members; i++) {
    if (starts[i] >= (i ? starts[i - 1] : 0) && starts[i] <= ranges->leaves) continue;
    return AD_REFUSE_CALL(call,
                          "starts[%u] of `ranges` is %" PRId64
                          ", but starts must not fall, and must be from 0 to %" PRId64 ", the number of leaves",
                          i, starts[i], ranges->leaves);
  }
  if (starts[0] < starts[call->members]) return AD_OK;
  return AD_REFUSE_CALL(call, "%s", "no member has a leaf, so there is nothing to sum; leave the call out");
}

// Lists the nodes that members contribute in `nodes`, which has room for AD_CALL_NODES_MAX, and sets node_starts[i] to
// the index of member i's first node, for i up to the number of members. Also finds the nodes that result from their
// sums.
static ad_status list_nodes(ad_call *call, const ad_leaf_ranges *ranges, ad_node *nodes, uint32_t *node_starts) {
  ad_node own[AD_NODES_MAX];
  node_starts[0] = 0;
  for (uint32_t i = 0; i < call->members; i++) {
    int64_t first = ranges->starts[i];
    size_t count = ad_nodes_of(first, ranges->starts[i + 1] - first, ranges->leaves, own);
    if (node_starts[i] + count > AD_CALL_NODES_MAX)
      return AD_REFUSE_CALL(call,
                            "the members have more than %d sums of leaves together, the most that are supported; "
                            "divide the leaves so that there are fewer",
                            AD_CALL_NODES_MAX);
    memcpy(nodes + node_starts[i], own, count * sizeof *own);
    node_starts[i + 1] = node_starts[i] + (uint32_t)count;
  }
  return AD_OK;
}

// Copies the lists of nodes to heap memory that the call owns.
static ad_status keep_nodes(ad_call *call, const ad_leaf_ranges *ranges, const ad_node *nodes,
                            const uint32_t *node_starts) {
  ad_node results[AD_NODES_MAX];
  int64_t first = ranges->starts[0];
  size_t count = ad_nodes_of(first, ranges->starts[call->members] - first, ranges->leaves, results);
  uint32_t given = node_starts[call->members];
  size_t bytes = count * sizeof *call->results + (call->members + 1 + given) * sizeof *node_starts;
  if (bytes > call->owned_nodes_bytes) {
    ad_release(call->owned_nodes);
    call->owned_nodes = NULL;
    call->owned_nodes_bytes = 0;
    AD_TRY(ad_new_bytes(bytes, 1, &call->owned_nodes));
    call->owned_nodes_bytes = bytes;
  }
  ad_call_result *kept = call->owned_nodes;
  uint32_t *starts = (uint32_t *)(void *)(kept + count), *leaves = starts + call->members + 1, at = 0;
  memcpy(starts, node_starts, (call->members + 1) * sizeof *starts);
  for (uint32_t i = 0; i < given; i++) leaves[i] = (uint32_t)nodes[i].count;
  for (size_t r = 0; r < count; r++) {
    kept[r] = (ad_call_result){.first = at};
    while (at < given && nodes[at].first < results[r].first + results[r].count) at++;
    kept[r].count = at - kept[r].first;
  }
  call->results = kept;
  call->result_count = (uint32_t)count;
  call->node_starts = starts;
  call->node_leaves = leaves;
  call->ranges_hash =
      XXH3_64bits_withSeed(ranges->starts, (call->members + 1) * sizeof *ranges->starts, (uint64_t)ranges->leaves);
  return AD_OK;
}

ad_status ad_call_take_ranges(const ad_leaf_ranges *ranges, ad_call *call) {
  ad_node nodes[AD_CALL_NODES_MAX];
  uint32_t node_starts[AD_CALL_NODES_MAX + 1];
  if (!ranges) return AD_OK;
  AD_TRY(check_ranges(call, ranges));
  if (ad_nodes_follow_members(ranges->starts, call->members, ranges->leaves)) return AD_OK;
  if (call->members > AD_CALL_NODES_MAX)
    return AD_REFUSE_CALL(call, "a group of %u ranks cannot sum leaves; use a group of at most %d ranks", call->members,
                          AD_CALL_NODES_MAX);
  AD_TRY(list_nodes(call, ranges, nodes, node_starts));
  AD_TRY(keep_nodes(call, ranges, nodes, node_starts));
  call->reducing.aligned = 1;
  call->reducing.leaves = call->node_leaves;
  if (call->result_count == 1 || !call->reducing.adds) return AD_OK;
  return AD_REFUSE_CALL(
      call,
      "`adds` is set, but the call has %u sums of leaves, and only one sum can be added to the output; set `adds` to 0",
      call->result_count);
}

int ad_call_is_even(const ad_call *call) {
  if (ad_call_results(call) > 1) return 0;
  for (uint32_t i = 0; i < call->members; i++)
    if (ad_call_addends(call, i) != 1) return 0;
  return 1;
}

ad_reducing ad_call_reducing_leaves(const ad_call *call, uint32_t result, uint32_t *first, uint32_t *count) {
  ad_reducing how = call->reducing;
  const ad_call_result *of = &call->results[result];
  *first = of->first;
  *count = of->count;
  how.leaves = call->node_leaves + of->first;
  return how;
}
