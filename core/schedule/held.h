/* Counts the activations and operands that a rank keeps while it goes through its list of actions. */
#ifndef SCHEDULE_HELD_H
#define SCHEDULE_HELD_H
#include "addend/schedule.h"

typedef struct ad_table_held {
  int32_t in_flight; /* activations: pairs of stage and microbatch that have done F, but not yet B or I */
  int32_t deferred;  /* operands for a later W: pairs that have done I, but not yet W */
} ad_table_held;
void ad_table_hold(ad_table_held *held, ad_action_kind kind); /* counts an action of this kind */

#endif
