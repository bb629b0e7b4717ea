/* The passes that lower a table, each in a file of its own. The table holds before and after; a pass changes it only
 * where it does not fail. */
#ifndef SCHEDULE_PASSES_H
#define SCHEDULE_PASSES_H
#include "schedule/table.h"

/* SEND behind what gives a value or a gradient, RECV on the other rank before what begins later. */
AD_CHECKED ad_status ad_table_insert_transfers(ad_table *table);
/* GATHER before a stage's first use, RELEASE behind its last one; at most `most` stages at once, 0 for any number. */
AD_CHECKED ad_status ad_table_insert_gathers(ad_table *table, int32_t most);
/* REDUCE behind a stage's last addend and the sends that follow it; with `each` one behind every other addend too. */
AD_CHECKED ad_status ad_table_insert_reductions(ad_table *table, int each);
/* WAIT_SEND and WAIT_REDUCE of all that these parts have; the table has none of them yet. */
AD_CHECKED ad_status ad_table_insert_waits(ad_table *table, unsigned parts);
/* SUMS, NORM and the updates at the end of each list. */
AD_CHECKED ad_status ad_table_insert_end(ad_table *table);

/* A list that is being written anew. */
typedef struct ad_table_list {
  ad_action *actions;
  size_t count, capacity;
  ad_status status; /* of the first that had no memory: the others are not there */
} ad_table_list;
void ad_table_list_add(ad_table_list *list, const ad_action *action);
/* Puts the list in the place of the rank's; or, where it has no memory, gives it back and returns AD_MEMORY. */
AD_CHECKED ad_status ad_table_list_give(ad_table_list *list, ad_table *table, int32_t rank);

#endif
