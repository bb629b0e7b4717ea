/* The law that an action comes after all actions that it needs from its own rank. law_circle.c checks actions of other
 * ranks. */
#include "schedule/laws.h"

// Checks that all actions that this action needs from its own rank come before it.
static void judge_action(const ad_table_index *index, ad_table_spot at, ad_table_faults *faults) {
  ad_table_needs needs = ad_table_needs_of(index, at);
  ad_table_spot need;
  char text[AD_ACTION_TEXT_MAX];
  while (ad_table_needs_next(&needs, &need)) {
    if (need.rank != at.rank || need.place < at.place) continue;
    const ad_action *action = &index->table->rows[need.rank].actions[need.place];
    ad_table_fault_at(faults, AD_TABLE_LAW_GIVEN, index->table, at,
                      "this action needs %s, which comes later, at place %d; move this action after that place",
                      ad_action_print(action, text, sizeof text), need.place);
  }
}

void ad_table_law_given(const ad_table_index *index, ad_table_faults *faults) {
  for (int32_t r = 0; r < index->table->ranks; r++)
    for (size_t i = 0; i < index->table->rows[r].count; i++)
      judge_action(index, (ad_table_spot){r, (int32_t)i}, faults);
}
