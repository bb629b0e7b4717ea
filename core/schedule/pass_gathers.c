/* The pass that inserts gathers: a stage's parameters are gathered before the first action that uses them, and released
 * after the last action that uses them. If the number of gathered stages on a rank is limited, the rank releases a
 * stage before it gathers one too many: the stage whose next use is latest. */
#include "base/memory.h"
#include "schedule/passes.h"

/* The state of the pass on one rank. */
typedef struct gathering {
  int32_t *next; /* for each action: position of the next action that uses the same stage; INT32_MAX: there is none */
  int32_t *use;  /* for each stage: position of the next action that uses it */
  char *is_held;
  int32_t held, most;
  ad_table_list list;
} gathering;

static int uses(const ad_action *action) { return ad_action_record_of(action->kind)->part == AD_TABLE_COMPUTE; }

/* Finds for each action the next action that uses the same stage, and for each stage its first use. */
static void find_uses(const ad_table *table, const ad_table_row *row, gathering *to) {
  for (int32_t s = 0; s < table->stages; s++) to->use[s] = INT32_MAX;
  for (size_t i = row->count; i-- > 0;) {
    if (!uses(&row->actions[i])) continue;
    to->next[i] = to->use[row->actions[i].stage];
    to->use[row->actions[i].stage] = (int32_t)i;
  }
}

static void add_gather_action(gathering *to, ad_action_kind kind, int32_t stage) {
  ad_action action = {.kind = kind, .stage = stage};
  ad_table_list_add(&to->list, &action);
  to->is_held[stage] = kind == AD_ACTION_GATHER;
  to->held += kind == AD_ACTION_GATHER ? 1 : -1;
}

static void release_farthest(const ad_table *table, gathering *to) {
  int32_t farthest = -1;
  for (int32_t s = 0; s < table->stages; s++)
    if (to->is_held[s] && (farthest < 0 || to->use[s] > to->use[farthest])) farthest = s;
  add_gather_action(to, AD_ACTION_RELEASE, farthest);
}

/* Writes the rank's new list, with a GATHER before each action that needs one and a RELEASE after each last use. */
static void write_row(const ad_table *table, const ad_table_row *row, gathering *to) {
  for (size_t i = 0; i < row->count; i++) {
    const ad_action *action = &row->actions[i];
    if (uses(action) && !to->is_held[action->stage]) {
      if (to->most && to->held == to->most) release_farthest(table, to);
      add_gather_action(to, AD_ACTION_GATHER, action->stage);
    }
    ad_table_list_add(&to->list, action);
    if (!uses(action)) continue;
    to->use[action->stage] = to->next[i];
    if (to->next[i] == INT32_MAX) add_gather_action(to, AD_ACTION_RELEASE, action->stage);
  }
}

static ad_status rewrite(ad_table *table, int32_t rank, gathering *to) {
  const ad_table_row *row = &table->rows[rank];
  AD_TRY(ad_new(row->count, &to->next));
  find_uses(table, row, to);
  write_row(table, row, to);
  ad_release(to->next);
  ad_table_list list = to->list;
  to->list = (ad_table_list){0};
  return ad_table_list_give(&list, table, rank);
}

ad_status ad_table_insert_gathers(ad_table *table, int32_t most) {
  gathering all = {.most = most};
  ad_status status = ad_new((size_t)table->stages, &all.use);
  if (!status) status = ad_new((size_t)table->stages, &all.is_held);
  for (int32_t r = 0; !status && r < table->ranks; r++) status = rewrite(table, r, &all);
  ad_release(all.use);
  ad_release(all.is_held);
  return status;
}
