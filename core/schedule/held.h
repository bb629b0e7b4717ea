/* Counts what a rank holds while it goes through its list of actions. */
#ifndef SCHEDULE_HELD_H
#define SCHEDULE_HELD_H
#include "addend/schedule.h"

typedef struct ad_table_held {
  int32_t in_flight; /* activations: microbatches and stages whose F was, and whose B or I was not */
  int32_t deferred;  /* operands for a W that comes later: its I was */
} ad_table_held;
void ad_table_hold(ad_table_held *held, ad_action_kind kind); /* counts an action of this kind */

#endif
