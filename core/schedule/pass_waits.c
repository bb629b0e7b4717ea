/* The pass that inserts waits. The wait for a value's send comes after the B or I of its microbatch: the gradient has
 * come back, so the value has arrived, and the wait takes no time. The waits for all other sends come at the end of the
 * list. The wait for a reduction comes before the rank's next reduction, or at the end of the list. */
#include "base/memory.h"
#include "schedule/index.h"
#include "schedule/passes.h"

typedef struct waiting {
  const ad_table_index *index;
  unsigned parts;  /* the parts whose waits are inserted */
  int is_reducing; /* 1: a reduction is in flight */
  int32_t reduced; /* the stage whose reduction is in flight */
  ad_table_list list;
} waiting;

/* Inserts the wait for the reduction in flight, if there is one. */
static void put_reduction(waiting *to) {
  ad_action wait = {.kind = AD_ACTION_WAIT_REDUCE, .stage = to->reduced};
  if (to->is_reducing) ad_table_list_add(&to->list, &wait);
  to->is_reducing = 0;
}

/* Inserts the waits for the values that the stage has sent for this microbatch and whose gradients have come back. */
static void put_values(waiting *to, const ad_action *backward) {
  int32_t s = backward->stage;
  for (size_t e = to->index->out_first[s]; e < to->index->out_first[s + 1]; e++) {
    ad_stage_edge edge = ad_table_edge(to->index->table, e);
    ad_action wait = {AD_ACTION_WAIT_SEND_F, s, backward->microbatch, edge.to - s};
    if (edge.way == AD_STAGE_BOTH_WAYS && ad_table_edge_travels(to->index, e)) ad_table_list_add(&to->list, &wait);
  }
}

/* Inserts the wait for a send after which no gradient comes back. */
static void put_other(waiting *to, const ad_action *send) {
  const ad_table *table = to->index->table;
  ad_action wait = *send;
  if (send->kind != AD_ACTION_SEND_F && send->kind != AD_ACTION_SEND_B) return;
  if (send->kind == AD_ACTION_SEND_F && ad_table_edge(table, ad_table_edge_of(table, send)).way == AD_STAGE_BOTH_WAYS)
    return;
  wait.kind = send->kind == AD_ACTION_SEND_F ? AD_ACTION_WAIT_SEND_F : AD_ACTION_WAIT_SEND_B;
  ad_table_list_add(&to->list, &wait);
}

static void add_with_waits(waiting *to, const ad_action *action) {
  if (action->kind == AD_ACTION_REDUCE) put_reduction(to);
  ad_table_list_add(&to->list, action);
  if (to->parts & AD_TABLE_TRANSFERS && ad_action_is_backward(action->kind)) put_values(to, action);
  if (!(to->parts & AD_TABLE_REDUCTIONS) || action->kind != AD_ACTION_REDUCE) return;
  to->is_reducing = 1;
  to->reduced = action->stage;
}

static ad_status rewrite(waiting *to, ad_table *table, int32_t rank) {
  const ad_table_row *row = &table->rows[rank];
  for (size_t i = 0; i < row->count; i++) add_with_waits(to, &row->actions[i]);
  for (size_t i = 0; to->parts & AD_TABLE_TRANSFERS && i < row->count; i++) put_other(to, &row->actions[i]);
  put_reduction(to);
  ad_table_list list = to->list;
  to->list = (ad_table_list){0};
  return ad_table_list_give(&list, table, rank);
}

ad_status ad_table_insert_waits(ad_table *table, unsigned parts) {
  ad_table_index index;
  ad_table_faults faults = {.count = 0};
  ad_status status = ad_table_index_create(table, &index, &faults);
  waiting all = {.index = &index, .parts = parts};
  for (int32_t r = 0; !status && r < table->ranks; r++) status = rewrite(&all, table, r);
  ad_table_index_destroy(&index);
  return status;
}
