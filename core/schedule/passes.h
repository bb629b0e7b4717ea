/* The passes that lower a table: each inserts one kind of actions, and has its own file. The table breaks no law before
 * and after a pass. A pass that fails may have changed some of the lists, so ad_table_lower runs passes on a copy. */
#ifndef SCHEDULE_PASSES_H
#define SCHEDULE_PASSES_H
#include "schedule/table.h"

/* Inserts a SEND after each action that computes a value or a gradient for another rank. Inserts the RECV on that rank
 * before the first action that begins when the value has arrived. */
AD_CHECKED ad_status ad_table_insert_transfers(ad_table *table);
/* Inserts GATHER before a stage's first use and RELEASE after its last use. At most `most` stages are gathered on a
 * rank at a time (0: any number). */
AD_CHECKED ad_status ad_table_insert_gathers(ad_table *table, int32_t most);
/* Inserts a REDUCE for each stage, after its last addend and the sends that directly follow that addend. If `each` is
 * 1, also inserts a REDUCE after every other addend. */
AD_CHECKED ad_status ad_table_insert_reductions(ad_table *table, int each);
/* Inserts a WAIT_SEND for each send and a WAIT_REDUCE for each reduction, if `parts` has them; the table must not have
 * such waits yet. */
AD_CHECKED ad_status ad_table_insert_waits(ad_table *table, unsigned parts);
/* Adds SUMS, NORM and the updates at the end of the lists. */
AD_CHECKED ad_status ad_table_insert_end(ad_table *table);

/* The new list of a rank, as a pass writes it. */
typedef struct ad_table_list {
  ad_action *actions;
  size_t count, capacity;
  /* AD_MEMORY after an action could not be added for lack of memory; no more actions are then added */
  ad_status status;
} ad_table_list;
void ad_table_list_add(ad_table_list *list, const ad_action *action);
/* Makes `list` the rank's list. If list->status is AD_MEMORY, frees it instead and returns AD_MEMORY. */
AD_CHECKED ad_status ad_table_list_give(ad_table_list *list, ad_table *table, int32_t rank);

#endif
