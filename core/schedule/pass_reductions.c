/* The pass that inserts reductions: one after each stage's last addend and, if each microbatch is reduced, one after
 * every other addend. If sends directly follow an addend, the reduction comes after these sends. */
#include "base/memory.h"
#include "schedule/passes.h"

static int is_send(const ad_action *action) {
  return action->kind == AD_ACTION_SEND_F || action->kind == AD_ACTION_SEND_B;
}

/* Returns 1 if the next action is a send. Sends go before a reduction, because other ranks wait for them. */
static int sends_follow(const ad_table_row *row, size_t i) {
  return i + 1 < row->count && is_send(&row->actions[i + 1]);
}

/* Writes the rank's new list, with its reductions. `addends` has the number of addends of each stage so far. */
static ad_status rewrite(ad_table *table, int32_t rank, int32_t *addends, int each) {
  const ad_table_row *row = &table->rows[rank];
  ad_table_list list = {0};
  ad_action reduce = {AD_ACTION_REDUCE, 0, 0, 0};
  int is_due = 0;
  for (size_t i = 0; i < row->count; i++) {
    const ad_action *action = &row->actions[i];
    ad_table_list_add(&list, action);
    if (ad_action_is_addend(action->kind)) {
      int is_last = ++addends[action->stage] == table->microbatches;
      reduce = (ad_action){AD_ACTION_REDUCE, action->stage, is_last ? -1 : action->microbatch, 0};
      is_due = is_last || each;
    }
    if (!is_due || sends_follow(row, i)) continue;
    ad_table_list_add(&list, &reduce);
    is_due = 0;
  }
  return ad_table_list_give(&list, table, rank);
}

ad_status ad_table_insert_reductions(ad_table *table, int each) {
  int32_t *addends;
  AD_TRY(ad_new((size_t)table->stages, &addends));
  ad_status status = AD_OK;
  for (int32_t r = 0; !status && r < table->ranks; r++) status = rewrite(table, r, addends, each);
  ad_release(addends);
  return status;
}
