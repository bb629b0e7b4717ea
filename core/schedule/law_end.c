/* The laws of the end of a step: the sums come after every forward of the rank, the norm after the sums and after every
 * reduction, each update after the norm. SUMS and NORM occur once on each rank, UPDATE once for each stage. */
#include "schedule/laws.h"

static void judge_rank(const ad_table_index *index, ad_action_kind kind, int32_t rank, ad_table_faults *faults) {
  if (ad_table_find_on(index, kind, rank).rank >= 0) return;
  ad_table_fault_of(faults, AD_TABLE_LAW_END, rank, -1, -1,
                    "the table has no %s here, although all ranks must take part in this action, so the other ranks "
                    "would wait for this rank; put the action after the last reduction of this rank",
                    ad_action_name(kind));
}

static void judge_stage(const ad_table_index *index, int32_t s, ad_table_faults *faults) {
  if (ad_table_find_stage(index, AD_ACTION_UPDATE, s).rank >= 0) return;
  ad_table_fault_of(faults, AD_TABLE_LAW_END, index->rank_of[s], s, -1,
                    "stage %d is never updated; put %dUPDATE at the end of the list", s, s);
}

/* Adds a fault if `need` comes after `at` on the same rank. */
static void need_before(const ad_table_index *index, ad_table_spot at, ad_table_spot need, ad_table_faults *faults) {
  char text[AD_ACTION_TEXT_MAX];
  if (at.rank < 0 || need.rank != at.rank || need.place < at.place) return;
  const ad_action *action = &index->table->rows[need.rank].actions[need.place];
  ad_table_fault_at(faults, AD_TABLE_LAW_END, index->table, at,
                    "this action needs %s, which comes later, at place %d; move this action after that place",
                    ad_action_print(action, text, sizeof text), need.place);
}

/* Checks that SUMS, NORM and UPDATE of a rank come after the actions that they need. */
static void judge_order(const ad_table_index *index, int32_t r, ad_table_faults *faults) {
  ad_table_spot sums = ad_table_find_on(index, AD_ACTION_SUMS, r), norm = ad_table_find_on(index, AD_ACTION_NORM, r);
  const ad_table_row *row = &index->table->rows[r];
  need_before(index, norm, sums, faults);
  for (size_t i = 0; i < row->count; i++) {
    ad_table_spot at = {r, (int32_t)i};
    const ad_action *action = &row->actions[i];
    if (action->kind == AD_ACTION_F) need_before(index, sums, at, faults);
    if (action->kind == AD_ACTION_REDUCE || action->kind == AD_ACTION_WAIT_REDUCE) need_before(index, norm, at, faults);
    if (action->kind == AD_ACTION_UPDATE) need_before(index, at, norm, faults);
  }
}

void ad_table_law_end(const ad_table_index *index, ad_table_faults *faults) {
  const ad_table *table = index->table;
  if (!(table->parts & AD_TABLE_END)) return;
  for (int32_t r = 0; r < table->ranks; r++) {
    judge_rank(index, AD_ACTION_SUMS, r, faults);
    judge_rank(index, AD_ACTION_NORM, r, faults);
    judge_order(index, r, faults);
  }
  for (int32_t s = 0; s < table->stages; s++) judge_stage(index, s, faults);
}
