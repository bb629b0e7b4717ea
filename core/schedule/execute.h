/* Simulates a table: every rank performs its actions one after another, and waits for the actions of other ranks that
 * they need. */
#ifndef SCHEDULE_EXECUTE_H
#define SCHEDULE_EXECUTE_H
#include "schedule/needs.h"

/* How transfers take time and make ranks wait. */
typedef enum ad_sends {
  /* A SEND and a RECV end immediately, and the action that needs the value waits for its arrival. As the end of a RECV,
   * the time of the arrival is reported. */
  AD_SENDS_OVERLAPPED,
  AD_SENDS_BUFFERED, /* a SEND ends immediately; a RECV ends when its SEND has ended */
  /* a SEND ends when its RECV ends; if the table has WAIT_SEND actions, the WAIT_SEND ends then instead of the SEND */
  AD_SENDS_BLOCKING
} ad_sends;

typedef struct ad_execution {
  const ad_table_index *index;
  ad_sends sends;
  ad_table_costs costs;
  double *begin, *end; /* for each action, by ad_table_number: the times at which it begins and ends */
  int32_t *place;      /* for each rank: index of its next action */
  double *clock;       /* for each rank: the time at which its last action ended */
  /* for each rank: a needed action that had not ended when the rank's next action was last tried */
  ad_table_spot *waits_for;
  /* Lists of ranks that wait for another rank. waiter: for each rank, the first rank that waits for it; next: for each
   * rank, the next rank in the same list */
  int32_t *waiter, *next;
  int32_t *ready; /* stack of the ranks that may continue */
  int32_t ready_count;
  char *is_ready;
  int32_t arrived[AD_ACTION_COUNT]; /* number of ranks whose next action is SUMS, or NORM */
  int waits;                        /* 1: the table has WAIT_SEND actions */
} ad_execution;

/* Simulates the table until it ends or no rank can continue. AD_MEMORY. Release with ad_execution_destroy. */
AD_CHECKED ad_status ad_execute(const ad_table_index *index, ad_sends sends, const ad_table_costs *costs,
                                ad_execution *out);
void ad_execution_destroy(ad_execution *run);
/* Returns the first rank that is not at the end of its list, or -1 if all ranks are at the end. */
int32_t ad_execution_stuck(const ad_execution *run);
/* The time that the action takes: 0 for transfers and other actions that compute nothing. */
double ad_table_cost_of(const ad_table_costs *costs, const ad_action *action);

#endif
