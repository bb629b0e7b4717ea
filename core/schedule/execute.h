/* Executes a table on paper: every rank takes its actions one after the other and waits where it must. */
#ifndef SCHEDULE_EXECUTE_H
#define SCHEDULE_EXECUTE_H
#include "schedule/needs.h"

/* How transfers take time and make ranks wait. */
typedef enum ad_sends {
  /* A SEND and a RECV end at once; the action that needs a value waits for it. In a report of times a RECV ends when
   * its value arrived. */
  AD_SENDS_OVERLAPPED,
  AD_SENDS_BUFFERED, /* a SEND ends at once, a RECV when it was sent */
  AD_SENDS_BLOCKING  /* both end together; where a table has WAIT_SEND, that one ends as the RECV does */
} ad_sends;

typedef struct ad_execution {
  const ad_table_index *index;
  ad_sends sends;
  ad_table_costs costs;
  double *begin, *end;      /* for each action (ad_table_number): when it begins and ends */
  int32_t *place;           /* for each rank: index of its next action */
  double *clock;            /* for each rank: when its last action ended */
  ad_table_spot *waits_for; /* for each rank: the action that it last found not done */
  int32_t *waiter, *next;   /* for each rank: the first that waits for it; the next that waits for the same */
  int32_t *ready;           /* ranks that may go on, a stack */
  int32_t ready_count;
  char *is_ready;
  int32_t arrived[AD_ACTION_COUNT]; /* number of ranks that have come to SUMS, and to NORM */
  int waits;                        /* the table has WAIT_SEND */
} ad_execution;

/* Executes the table on paper, as far as its waits allow. AD_MEMORY. Release with ad_execution_destroy. */
AD_CHECKED ad_status ad_execute(const ad_table_index *index, ad_sends sends, const ad_table_costs *costs,
                                ad_execution *out);
void ad_execution_destroy(ad_execution *run);
/* The first rank that is not at the end of its list; -1: all ranks are. */
int32_t ad_execution_stuck(const ad_execution *run);
/* The time that the action takes: 0 for transfers and all that computes nothing. */
double ad_table_cost_of(const ad_table_costs *costs, const ad_action *action);

#endif
