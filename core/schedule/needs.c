/* The order that a table must have, as pairs of an action and an action that it needs. */
#include "schedule/needs.h"

static const ad_table_spot nowhere = {-1, -1};

ad_table_spot ad_table_other_end(const ad_table_index *index, const ad_action *action) {
  static const ad_action_kind others[AD_ACTION_COUNT] = {
      [AD_ACTION_SEND_F] = AD_ACTION_RECV_F,      [AD_ACTION_RECV_F] = AD_ACTION_SEND_F,
      [AD_ACTION_SEND_B] = AD_ACTION_RECV_B,      [AD_ACTION_RECV_B] = AD_ACTION_SEND_B,
      [AD_ACTION_WAIT_SEND_F] = AD_ACTION_RECV_F, [AD_ACTION_WAIT_SEND_B] = AD_ACTION_RECV_B};
  size_t edge = ad_table_edge_of(index->table, action);
  if (edge == SIZE_MAX) return nowhere;
  return ad_table_find_transfer(index, others[action->kind], edge, action->microbatch);
}

/* Returns the SEND that a WAIT_SEND waits for. */
static ad_table_spot waited_for(const ad_table_index *index, const ad_action *action) {
  ad_action_kind sent = action->kind == AD_ACTION_WAIT_SEND_F ? AD_ACTION_SEND_F : AD_ACTION_SEND_B;
  size_t edge = ad_table_edge_of(index->table, action);
  return edge == SIZE_MAX ? nowhere : ad_table_find_transfer(index, sent, edge, action->microbatch);
}

/* Returns the action that `action` needs within its own stage or, if `action` is a transfer, within that transfer. */
static ad_table_spot own_need(const ad_table_index *index, const ad_action *action) {
  int32_t stage = action->stage, m = action->microbatch;
  switch (action->kind) {
    case AD_ACTION_B:
    case AD_ACTION_I:
    case AD_ACTION_SEND_F:
      return ad_table_find(index, AD_ACTION_F, stage, m);
    case AD_ACTION_W:
      return ad_table_find(index, AD_ACTION_I, stage, m);
    case AD_ACTION_SEND_B:
      return ad_table_find_backward(index, stage, m);
    case AD_ACTION_WAIT_SEND_F:
    case AD_ACTION_WAIT_SEND_B:
      return waited_for(index, action);
    case AD_ACTION_RECV_F:
    case AD_ACTION_RECV_B:
      return ad_table_other_end(index, action);
    default:
      return nowhere;
  }
}

/* Returns the action after which the edge's value is on the rank of the edge's second stage: RECV_F, or F on one
 * rank. */
static ad_table_spot value_over(const ad_table_index *index, size_t e, int32_t m) {
  return ad_table_edge_travels(index, e) ? ad_table_find_transfer(index, AD_ACTION_RECV_F, e, m)
                                         : ad_table_find(index, AD_ACTION_F, ad_table_edge(index->table, e).from, m);
}

/* Returns the action after which the edge's gradient is on the rank of the edge's first stage. The result has rank -1
 * if no gradient goes back over the edge. */
static ad_table_spot gradient_over(const ad_table_index *index, size_t e, int32_t m) {
  ad_stage_edge edge = ad_table_edge(index->table, e);
  if (edge.way == AD_STAGE_ONE_WAY) return nowhere;
  return ad_table_edge_travels(index, e) ? ad_table_find_transfer(index, AD_ACTION_RECV_B, e, m)
                                         : ad_table_find_backward(index, edge.to, m);
}

ad_table_needs ad_table_needs_of(const ad_table_index *index, ad_table_spot at) {
  const ad_action *action = &index->table->rows[at.rank].actions[at.place];
  ad_table_needs needs = {.index = index, .action = action};
  const size_t *first = action->kind == AD_ACTION_F           ? index->in_first
                        : ad_action_is_backward(action->kind) ? index->out_first
                                                              : NULL;
  if (first) needs.at = first[action->stage], needs.end = first[action->stage + 1];
  return needs;
}

int ad_table_needs_next(ad_table_needs *needs, ad_table_spot *out) {
  const ad_action *action = needs->action;
  if (!needs->is_begun) {
    needs->is_begun = 1;
    *out = own_need(needs->index, action);
    if (out->rank >= 0) return 1;
  }
  while (needs->at < needs->end) {
    size_t at = needs->at++;
    *out = action->kind == AD_ACTION_F ? value_over(needs->index, needs->index->in[at], action->microbatch)
                                       : gradient_over(needs->index, at, action->microbatch);
    if (out->rank >= 0) return 1;
  }
  return 0;
}
