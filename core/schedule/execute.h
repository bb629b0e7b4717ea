/* Simulates a table: every rank takes its actions one after the other and waits where it must. */
#ifndef SCHEDULE_EXECUTE_H
#define SCHEDULE_EXECUTE_H
#include "schedule/needs.h"

/* How transfers take time and make ranks wait. */
typedef enum ad_sends {
  /* A SEND and a RECV end immediately; the action that needs the value waits for it. In a report of times a RECV ends
   * when its value arrives. */
  AD_SENDS_OVERLAPPED,
  AD_SENDS_BUFFERED, /* a SEND ends immediately; its RECV ends when the SEND has ended */
  AD_SENDS_BLOCKING  /* a SEND ends when its RECV ends; if the table has WAIT_SEND, the WAIT_SEND does so instead */
} ad_sends;

typedef struct ad_execution {
  const ad_table_index *index;
  ad_sends sends;
  ad_table_costs costs;
  double *begin, *end;      /* for each action (ad_table_number): when it begins and ends */
  int32_t *place;           /* for each rank: index of its next action */
  double *clock;            /* for each rank: when its last action ended */
  ad_table_spot *waits_for; /* for each rank: the needed action that was not done when the rank last looked */
  int32_t *waiter, *next;   /* for each rank: the first rank that waits for it; the next rank in the same list */
  int32_t *ready;           /* ranks that may continue, a stack */
  int32_t ready_count;
  char *is_ready;
  int32_t arrived[AD_ACTION_COUNT]; /* number of ranks that have come to SUMS, and to NORM */
  int waits;                        /* the table has WAIT_SEND */
} ad_execution;

/* Simulates the table, as far as its waits allow. AD_MEMORY. Release with ad_execution_destroy. */
AD_CHECKED ad_status ad_execute(const ad_table_index *index, ad_sends sends, const ad_table_costs *costs,
                                ad_execution *out);
void ad_execution_destroy(ad_execution *run);
/* Returns the first rank that is not at the end of its list, or -1 if all ranks are at the end. */
int32_t ad_execution_stuck(const ad_execution *run);
/* The time that the action takes: 0 for transfers and other actions that compute nothing. */
double ad_table_cost_of(const ad_table_costs *costs, const ad_action *action);

#endif
