/* The passes that lower a table: each inserts one kind of actions, and has its own file. The table keeps all laws
 * before and after. A pass that fails may have changed only some lists, so ad_table_lower runs passes on a copy. */
#ifndef SCHEDULE_PASSES_H
#define SCHEDULE_PASSES_H
#include "schedule/table.h"

/* Inserts a SEND after each action that computes a value or a gradient for another rank, and the RECV on the other rank
 * before the actions that begin later. */
AD_CHECKED ad_status ad_table_insert_transfers(ad_table *table);
/* Inserts GATHER before a stage's first use and RELEASE after its last use. At most `most` stages are gathered on a
 * rank at a time (0: any number). */
AD_CHECKED ad_status ad_table_insert_gathers(ad_table *table, int32_t most);
/* Inserts a REDUCE for each stage, after its last addend and the sends that follow that addend. If `each` is 1, inserts
 * a REDUCE after every other addend too. */
AD_CHECKED ad_status ad_table_insert_reductions(ad_table *table, int each);
/* Inserts WAIT_SEND and WAIT_REDUCE for all sends and reductions, as `parts` says; the table has no such waits yet. */
AD_CHECKED ad_status ad_table_insert_waits(ad_table *table, unsigned parts);
/* Adds SUMS, NORM and the updates at the end of each list. */
AD_CHECKED ad_status ad_table_insert_end(ad_table *table);

/* The new list of a rank, which a pass writes. */
typedef struct ad_table_list {
  ad_action *actions;
  size_t count, capacity;
  ad_status status; /* AD_MEMORY since an action found no memory; later ones are not added */
} ad_table_list;
void ad_table_list_add(ad_table_list *list, const ad_action *action);
/* Makes the list that of the rank. Where the list had no memory, frees it and returns AD_MEMORY. */
AD_CHECKED ad_status ad_table_list_give(ad_table_list *list, ad_table *table, int32_t rank);

#endif
