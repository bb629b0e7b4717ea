/* The laws of transfers: what is sent is received, and in the order in which it was sent. */
#include <stdlib.h>

#include "base/memory.h"
#include "schedule/laws.h"

typedef struct direction {
  ad_action_kind send, receive;
  const char *what;
} direction;
static const direction forward = {AD_ACTION_SEND_F, AD_ACTION_RECV_F, "value"},
                       back = {AD_ACTION_SEND_B, AD_ACTION_RECV_B, "gradient"};

static ad_action transfer(ad_action_kind kind, int32_t stage, int32_t peer, int32_t m) {
  return (ad_action){kind, stage, m, peer - stage};
}

/* ---- law: each send has its receive, and each receive has its send ---- */

/* Checks that a value, or gradient, that must travel over edge e is both sent and received. */
static void judge_one(const ad_table_index *index, size_t e, const direction *way, int32_t m, ad_table_faults *faults) {
  ad_stage_edge edge = ad_table_edge(index->table, e);
  int is_back = way == &back;
  int32_t from = is_back ? edge.to : edge.from, to = is_back ? edge.from : edge.to;
  ad_table_spot sent = ad_table_find_transfer(index, way->send, e, m),
                received = ad_table_find_transfer(index, way->receive, e, m);
  ad_action send = transfer(way->send, from, to, m), receive = transfer(way->receive, to, from, m);
  char text[AD_ACTION_TEXT_MAX];
  if (sent.rank < 0 && received.rank < 0)
    ad_table_fault_of(faults, AD_TABLE_LAW_PAIRS, index->rank_of[from], from, m,
                      "stage %d needs a %s of microbatch %d from stage %d on rank %d, and it is not sent; put %s into "
                      "the list",
                      to, way->what, m, from, index->rank_of[from], ad_action_print(&send, text, sizeof text));
  else if (sent.rank < 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, received,
                      "nothing is sent for it to receive; put %s into the list of rank %d",
                      ad_action_print(&send, text, sizeof text), index->rank_of[from]);
  else if (received.rank < 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, sent,
                      "no rank receives what it sends; put %s into the list of rank %d",
                      ad_action_print(&receive, text, sizeof text), index->rank_of[to]);
}

/* Adds a fault if a transfer goes over an edge on which nothing travels, or carries a gradient where none goes back. */
static void judge_stays(const ad_table_index *index, size_t e, ad_action_kind kind, int32_t m,
                        ad_table_faults *faults) {
  ad_table_spot at = ad_table_find_transfer(index, kind, e, m);
  ad_stage_edge edge = ad_table_edge(index->table, e);
  if (at.rank < 0) return;
  if (!ad_table_edge_crosses(index, e))
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, at,
                      "stages %d and %d lie on the same rank, so nothing travels between them; leave this action out",
                      edge.from, edge.to);
  else if (edge.way == AD_STAGE_ONE_WAY && ad_action_goes_back(kind))
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, at,
                      "no gradient goes back from stage %d to stage %d; leave this action out", edge.to, edge.from);
}

static void judge_edge(const ad_table_index *index, size_t e, int32_t m, ad_table_faults *faults) {
  int travels = ad_table_edge_travels(index, e);
  int returns = ad_table_edge(index->table, e).way == AD_STAGE_BOTH_WAYS;
  if (travels) judge_one(index, e, &forward, m, faults);
  if (travels && returns) judge_one(index, e, &back, m, faults);
  for (ad_action_kind kind = AD_ACTION_SEND_F; kind <= AD_ACTION_WAIT_SEND_B; kind++)
    judge_stays(index, e, kind, m, faults);
}

/* ---- law: if a table waits for any send, it waits for every send ---- */

/* Checks that every send is waited for. Only asked of tables that have any WAIT_SEND. */
static void judge_waits(const ad_table_index *index, ad_action_kind wait, ad_action_kind send,
                        ad_table_faults *faults) {
  for (size_t e = 0; e < index->edges; e++) {
    for (int32_t m = 0; m < index->table->microbatches; m++) {
      ad_table_spot sent = ad_table_find_transfer(index, send, e, m),
                    waited = ad_table_find_transfer(index, wait, e, m);
      if (sent.rank >= 0 && waited.rank < 0)
        ad_table_fault_at(
            faults, AD_TABLE_LAW_PENDING, index->table, sent,
            "other sends of the table are waited for, but this one is still under way at the end; put a %s behind it",
            ad_action_name(wait));
    }
  }
}

static int has_waits(const ad_table_index *index) {
  const ad_table *table = index->table;
  for (size_t i = 0; i < index->edges * (size_t)table->microbatches; i++)
    if (index->spots[AD_ACTION_WAIT_SEND_F][i] || index->spots[AD_ACTION_WAIT_SEND_B][i]) return 1;
  return 0;
}

/* ---- law: on each edge, messages are received in the order of sending ---- */

static int by_place(const void *a, const void *b) {
  const ad_table_spot *x = a, *y = b;
  return (x->place > y->place) - (x->place < y->place);
}

static void list_order(const ad_table_index *index, ad_action_kind kind, size_t e, ad_table_spot *order) {
  size_t count = (size_t)index->table->microbatches;
  for (size_t m = 0; m < count; m++) order[m] = ad_table_find_transfer(index, kind, e, (int32_t)m);
  qsort(order, count, sizeof *order, by_place);
}

/* Checks that edge e sends and receives its microbatches in the same order, in one direction. */
static void judge_order(const ad_table_index *index, const direction *way, size_t e, ad_table_spot *sent,
                        ad_table_spot *received, ad_table_faults *faults) {
  list_order(index, way->send, e, sent);
  list_order(index, way->receive, e, received);
  for (int32_t i = 0; i < index->table->microbatches; i++) {
    const ad_table *table = index->table;
    const ad_action *send = &table->rows[sent[i].rank].actions[sent[i].place],
                    *receive = &table->rows[received[i].rank].actions[received[i].place];
    char text[AD_ACTION_TEXT_MAX];
    if (send->microbatch == receive->microbatch) continue;
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, table, received[i],
                      "it is receive number %d between the two stages, but send number %d, by rank %d, is %s (place "
                      "%d): it would take the %s of another microbatch; put both lists into the same order",
                      i, i, sent[i].rank, ad_action_print(send, text, sizeof text), sent[i].place, way->what);
    return;
  }
}

static ad_status judge_orders(const ad_table_index *index, ad_table_faults *faults) {
  ad_table_spot *spots;
  size_t count = (size_t)index->table->microbatches;
  AD_TRY(ad_new(2 * count, &spots));
  for (size_t e = 0; e < index->edges; e++) {
    if (!ad_table_edge_travels(index, e)) continue;
    judge_order(index, &forward, e, spots, spots + count, faults);
    if (ad_table_edge(index->table, e).way == AD_STAGE_BOTH_WAYS)
      judge_order(index, &back, e, spots, spots + count, faults);
  }
  ad_release(spots);
  return AD_OK;
}

ad_status ad_table_law_pairs(const ad_table_index *index, ad_table_faults *faults) {
  size_t before = faults->count;
  if (!(index->table->parts & AD_TABLE_TRANSFERS)) return AD_OK;
  for (size_t e = 0; e < index->edges; e++)
    for (int32_t m = 0; m < index->table->microbatches; m++) judge_edge(index, e, m, faults);
  if (has_waits(index)) {
    judge_waits(index, AD_ACTION_WAIT_SEND_F, AD_ACTION_SEND_F, faults);
    judge_waits(index, AD_ACTION_WAIT_SEND_B, AD_ACTION_SEND_B, faults);
  }
  return faults->count == before ? judge_orders(index, faults) : AD_OK;
}
