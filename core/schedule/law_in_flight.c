/* The law that a rank has no more activations in flight than a limit. Also counts activations and operands. */
#include "schedule/held.h"
#include "schedule/laws.h"

void ad_table_hold(ad_table_held *held, ad_action_kind kind) {
  held->in_flight += (kind == AD_ACTION_F) - ad_action_is_backward(kind);
  held->deferred += (kind == AD_ACTION_I) - (kind == AD_ACTION_W);
}

void ad_table_law_in_flight(const ad_table *table, int32_t limit, ad_table_faults *faults) {
  for (int32_t r = 0; limit && r < table->ranks; r++) {
    ad_table_held held = {0, 0};
    for (size_t i = 0; i < table->rows[r].count; i++) {
      ad_table_hold(&held, table->rows[r].actions[i].kind);
      if (held.in_flight <= limit || table->rows[r].actions[i].kind != AD_ACTION_F) continue;
      ad_table_fault_at(
          faults, AD_TABLE_LAW_IN_FLIGHT, table, (ad_table_spot){r, (int32_t)i},
          "with this forward %d activations are in flight, but the limit is %d; put a backward before this action",
          held.in_flight, limit);
      break;
    }
  }
}
