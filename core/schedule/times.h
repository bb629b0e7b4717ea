/* The times of a table that breaks no law: when each action begins and ends. */
#ifndef SCHEDULE_TIMES_H
#define SCHEDULE_TIMES_H
#include "schedule/execute.h"

typedef struct ad_table_times_of {
  ad_table_index index;
  ad_execution run; /* the simulation, in which transfers overlap compute */
  ad_table_costs costs;
} ad_table_times_of;

/* A rank's work and memory in a step. */
typedef struct ad_table_rank_worth {
  /* time in which the rank computes */
  double busy;
  int32_t in_flight, deferred; /* the most activations in flight at a time; the most operands kept for W at a time */
} ad_table_rank_worth;

/* Copies the options and the costs, with defaults for what is not given. AD_INVALID: a cost is negative, no number, or
 * too large, or there are not as many costs as the table needs. */
AD_CHECKED ad_status ad_table_take_options(const ad_table *table, const ad_table_options *given,
                                           ad_table_options *options, ad_table_costs *costs);
/* Checks a table's laws and computes its times. If it breaks a law, AD_INVALID with the sentence of the first one.
 * Release with ad_table_times_destroy. */
AD_CHECKED ad_status ad_table_times_create(const ad_table *table, const ad_table_options *given,
                                           ad_table_times_of *out);
void ad_table_times_destroy(ad_table_times_of *times);

ad_table_rank_worth ad_table_rank_worth_of(const ad_table_times_of *times, int32_t rank);
ad_table_worth ad_table_worth_of(const ad_table_times_of *times);

#endif
