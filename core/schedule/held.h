/* Counts the activations and operands that a rank keeps as it performs its list of actions. */
#ifndef SCHEDULE_HELD_H
#define SCHEDULE_HELD_H
#include "addend/schedule.h"

typedef struct ad_table_held {
  int32_t in_flight; /* activations: pairs of stage and microbatch after their F and before their B or I */
  int32_t deferred;  /* operands kept for W: pairs of stage and microbatch after their I and before their W */
} ad_table_held;
void ad_table_hold(ad_table_held *held, ad_action_kind kind); /* updates the counts for an action of this kind */

#endif
