/* The law of sharded parameters: a stage's parameters are gathered whenever they are used, GATHER and RELEASE
 * alternate, and no parameters are gathered at the end. */
#include "base/memory.h"
#include "schedule/laws.h"

// Checks one action, and updates gathered_at for the action's stage.
static void judge_action(const ad_table *table, ad_table_spot at, int32_t *gathered_at, ad_table_faults *faults) {
  const ad_action *action = &table->rows[at.rank].actions[at.place];
  /* one more than the position of the stage's last GATHER; 0: its parameters are not gathered */
  int32_t *gathered = &gathered_at[action->stage];
  int computes = ad_action_record_of(action->kind)->part == AD_TABLE_COMPUTE;
  if (computes && !*gathered)
    ad_table_fault_at(faults, AD_TABLE_LAW_GATHERED, table, at,
                      "the parameters of stage %d are not gathered here; put %dGATHER before it", action->stage,
                      action->stage);
  if (action->kind == AD_ACTION_GATHER && *gathered)
    ad_table_fault_at(
        faults, AD_TABLE_LAW_GATHERED, table, at,
        "stage %d was gathered at place %d and is not released yet; leave this action out, or release the stage first",
        action->stage, *gathered - 1);
  if (action->kind == AD_ACTION_RELEASE && !*gathered)
    ad_table_fault_at(faults, AD_TABLE_LAW_GATHERED, table, at, "stage %d is not gathered here; leave this action out",
                      action->stage);
  if (action->kind == AD_ACTION_GATHER) *gathered = at.place + 1;
  if (action->kind == AD_ACTION_RELEASE) *gathered = 0;
}

ad_status ad_table_law_gathered(const ad_table_index *index, ad_table_faults *faults) {
  const ad_table *table = index->table;
  int32_t *gathered_at;
  if (!(table->parts & AD_TABLE_GATHERS)) return AD_OK;
  AD_TRY(ad_new((size_t)table->stages, &gathered_at));
  for (int32_t r = 0; r < table->ranks; r++)
    for (size_t i = 0; i < table->rows[r].count; i++)
      judge_action(table, (ad_table_spot){r, (int32_t)i}, gathered_at, faults);
  for (int32_t s = 0; s < table->stages; s++)
    if (gathered_at[s])
      ad_table_fault_at(
          faults, AD_TABLE_LAW_PENDING, table, (ad_table_spot){index->rank_of[s], gathered_at[s] - 1},
          "the parameters that this action gathers are never released; put %dRELEASE after the last action of stage %d",
          s, s);
  ad_release(gathered_at);
  return AD_OK;
}
