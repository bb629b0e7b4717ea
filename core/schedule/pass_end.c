/* The pass that adds the end of a step: SUMS and NORM on every rank, then UPDATE for each of the rank's stages. */
#include "base/memory.h"
#include "schedule/passes.h"

/* Sets rank_of for each stage whose F is in this list. */
static void find_stages(const ad_table_row *row, int32_t rank, int32_t *rank_of) {
  for (size_t i = 0; i < row->count; i++)
    if (row->actions[i].kind == AD_ACTION_F) rank_of[row->actions[i].stage] = rank;
}

/* Adds SUMS, NORM and UPDATE at the end of the lists. */
static ad_status add_end_actions(ad_table *table, const int32_t *rank_of) {
  ad_action sums = {.kind = AD_ACTION_SUMS}, norm = {.kind = AD_ACTION_NORM};
  for (int32_t r = 0; r < table->ranks; r++) {
    AD_TRY(ad_table_add(table, r, &sums));
    AD_TRY(ad_table_add(table, r, &norm));
  }
  for (int32_t s = 0; s < table->stages; s++) {
    ad_action update = {.kind = AD_ACTION_UPDATE, .stage = s};
    AD_TRY(ad_table_add(table, rank_of[s], &update));
  }
  return AD_OK;
}

ad_status ad_table_insert_end(ad_table *table) {
  int32_t *rank_of;
  AD_TRY(ad_new((size_t)table->stages, &rank_of));
  for (int32_t r = 0; r < table->ranks; r++) find_stages(&table->rows[r], r, rank_of);
  ad_status status = add_end_actions(table, rank_of);
  ad_release(rank_of);
  return status;
}
