/* The laws of transfers: each message that is sent is received, and messages are received in the order of sending. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Checks that a value, or a gradient, that must be sent over edge e is both sent and received. */
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
                      "stage %d needs a %s of microbatch %d from stage %d on rank %d, but no action sends the value; "
                      "put %s into the list",
                      to, way->what, m, from, index->rank_of[from], ad_action_print(&send, text, sizeof text));
  else if (sent.rank < 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, received,
                      "no rank sends what this action receives; put %s into the list of rank %d",
                      ad_action_print(&send, text, sizeof text), index->rank_of[from]);
  else if (received.rank < 0)
    ad_table_fault_at(faults, AD_TABLE_LAW_PAIRS, index->table, sent,
                      "no rank receives what this action sends; put %s into the list of rank %d",
                      ad_action_print(&receive, text, sizeof text), index->rank_of[to]);
}

/* Adds a fault if a transfer belongs to an edge within one rank, or if it sends a gradient over an edge without
 * gradients. */
static void judge_stays(const ad_table_index *index, size_t e, ad_action_kind kind, int32_t m,
                        ad_table_faults *faults) {
  ad_table_spot at = ad_table_find_transfer(index, kind, e, m);
  ad_stage_edge edge = ad_table_edge(index->table, e);
  if (at.rank < 0) return;
  if (!ad_table_edge_crosses(index, e))
    ad_table_fault_at(
        faults, AD_TABLE_LAW_PAIRS, index->table, at,
        "stages %d and %d are on the same rank, so no transfer is needed between the two; leave this action out",
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

/* In a table with any WAIT_SEND, checks that every send has one. */
static void judge_waits(const ad_table_index *index, ad_action_kind wait, ad_action_kind send,
                        ad_table_faults *faults) {
  for (size_t e = 0; e < index->edges; e++) {
    for (int32_t m = 0; m < index->table->microbatches; m++) {
      ad_table_spot sent = ad_table_find_transfer(index, send, e, m),
                    waited = ad_table_find_transfer(index, wait, e, m);
      if (sent.rank >= 0 && waited.rank < 0)
        ad_table_fault_at(faults, AD_TABLE_LAW_PENDING, index->table, sent,
                          "other sends of the table are waited for, but this send is still in flight at the end; put a "
                          "%s after this action",
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

/* ---- law: in each channel, messages are received in the order of sending ---- */

/* A value or gradient that one rank sends to another. Messages of one channel are matched by their order. If the
 * program that executes the table has no tag for each edge (as PyTorch), a channel is a pair of ranks; otherwise it is
 * an edge and a direction. */
typedef struct message {
  size_t channel;
  ad_table_spot sent, received;
} message;

static int by_channel(const message *x, const message *y, int32_t x_place, int32_t y_place) {
  if (x->channel != y->channel) return x->channel < y->channel ? -1 : 1;
  return (x_place > y_place) - (x_place < y_place);
}

static int in_order_of_sending(const void *a, const void *b) {
  const message *x = a, *y = b;
  return by_channel(x, y, x->sent.place, y->sent.place);
}

static int in_order_of_receiving(const void *a, const void *b) {
  const message *x = a, *y = b;
  return by_channel(x, y, x->received.place, y->received.place);
}

static size_t list_messages(const ad_table_index *index, ad_table_pairs pairs, message *out) {
  size_t count = 0, ranks = (size_t)index->table->ranks;
  for (size_t e = 0; e < index->edges; e++) {
    int ways = ad_table_edge(index->table, e).way == AD_STAGE_BOTH_WAYS ? 2 : 1;
    if (!ad_table_edge_travels(index, e)) continue;
    for (int way = 0; way < ways; way++)
      for (int32_t m = 0; m < index->table->microbatches; m++) {
        ad_table_spot sent = ad_table_find_transfer(index, way ? back.send : forward.send, e, m),
                      received = ad_table_find_transfer(index, way ? back.receive : forward.receive, e, m);
        size_t channel =
            pairs == AD_TABLE_PAIRS_EDGE ? 2 * e + (size_t)way : (size_t)sent.rank * ranks + (size_t)received.rank;
        out[count++] = (message){channel, sent, received};
      }
  }
  return count;
}

/* Prints " (line 2)" for a rank of a table that was read from CSV; otherwise prints "". */
static const char *print_line(const ad_table *table, int32_t rank, char *buffer, size_t size) {
  int line = ad_table_line(table, rank);
  *buffer = 0;
  if (line) snprintf(buffer, size, " (line %d)", line);
  return buffer;
}

/* Adds the fault of a receive that gets the message of another send. The send and the receive both have number `number`
 * in their channel. */
static void add_misplaced(const ad_table *table, ad_table_pairs pairs, size_t number, ad_table_spot sent,
                          ad_table_spot received, ad_table_faults *faults) {
  const ad_action *send = &table->rows[sent.rank].actions[sent.place];
  char channel[64] = "between the two stages", text[AD_ACTION_TEXT_MAX], from[24], to[24];
  if (pairs == AD_TABLE_PAIRS_RANKS)
    snprintf(channel, sizeof channel, "from rank %d to rank %d", sent.rank, received.rank);
  ad_table_fault *fault = ad_table_fault_at(
      faults, AD_TABLE_LAW_PAIRS, table, received,
      "this action is receive number %zu %s, but send number %zu is %s (rank %d, place %d), so this receive takes the "
      "%s of stage %d, microbatch %d; put the sends%s and the receives%s into one order",
      number, channel, number, ad_action_print(send, text, sizeof text), sent.rank, sent.place,
      ad_action_goes_back(send->kind) ? back.what : forward.what, send->stage, send->microbatch,
      print_line(table, sent.rank, from, sizeof from), print_line(table, received.rank, to, sizeof to));
  if (fault) fault->other = sent;
}

/* Compares the order of receiving with the order of sending; adds the first fault of each channel. */
static void compare_orders(const ad_table *table, ad_table_pairs pairs, const message *sent, const message *received,
                           size_t count, ad_table_faults *faults) {
  /* first: index of the first message of this channel; wrong: the last channel to which a fault was added */
  size_t first = 0, wrong = SIZE_MAX;
  for (size_t i = 0; i < count; i++) {
    if (sent[i].channel != sent[first].channel) first = i;
    if (sent[i].channel == wrong || sent[i].sent.place == received[i].sent.place) continue;
    add_misplaced(table, pairs, i - first, sent[i].sent, received[i].received, faults);
    wrong = sent[i].channel;
  }
}

static ad_status judge_orders(const ad_table_index *index, ad_table_pairs pairs, ad_table_faults *faults) {
  size_t most = 2 * index->edges * (size_t)index->table->microbatches;
  message *sent;
  AD_TRY(ad_new(2 * most, &sent));
  message *received = sent + most;
  size_t count = list_messages(index, pairs, sent);
  memcpy(received, sent, count * sizeof *sent);
  qsort(sent, count, sizeof *sent, in_order_of_sending);
  qsort(received, count, sizeof *received, in_order_of_receiving);
  compare_orders(index->table, pairs, sent, received, count, faults);
  ad_release(sent);
  return AD_OK;
}

ad_status ad_table_law_pairs(const ad_table_index *index, ad_table_pairs pairs, ad_table_faults *faults) {
  size_t before = faults->count;
  if (!(index->table->parts & AD_TABLE_TRANSFERS)) return AD_OK;
  for (size_t e = 0; e < index->edges; e++)
    for (int32_t m = 0; m < index->table->microbatches; m++) judge_edge(index, e, m, faults);
  if (has_waits(index)) {
    judge_waits(index, AD_ACTION_WAIT_SEND_F, AD_ACTION_SEND_F, faults);
    judge_waits(index, AD_ACTION_WAIT_SEND_B, AD_ACTION_SEND_B, faults);
  }
  return faults->count == before ? judge_orders(index, pairs, faults) : AD_OK;
}
