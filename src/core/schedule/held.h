/* What a rank holds while it goes through its list. */
#ifndef SCHEDULE_HELD_H
#define SCHEDULE_HELD_H
#include "addend/schedule.h"

typedef struct ad_table_held {
  int32_t in_flight; /* activations: F was, B or I was not */
  int32_t deferred;  /* operands of a W that comes later: I was */
} ad_table_held;
void ad_table_hold(ad_table_held *held, ad_action_kind kind); /* after an action of this kind */

#endif
