/* A table that holds, with its times. */
#ifndef SCHEDULE_TIMES_H
#define SCHEDULE_TIMES_H
#include "schedule/execute.h"

typedef struct ad_table_times_of {
  ad_table_index index;
  ad_execution run; /* transfers beside the compute */
  ad_table_costs costs;
} ad_table_times_of;

/* What a rank does in a step. */
typedef struct ad_table_rank_worth {
  double busy;
  int32_t in_flight, deferred; /* at most */
} ad_table_rank_worth;

/* The options with their defaults, and the costs. AD_INVALID: a cost that is none. */
AD_CHECKED ad_status ad_table_take_options(const ad_table *table, const ad_table_options *given,
                                           ad_table_options *options, ad_table_costs *costs);
/* AD_INVALID with the sentence of the law that is broken. Release with ad_table_times_destroy. */
AD_CHECKED ad_status ad_table_times_create(const ad_table *table, const ad_table_options *given,
                                           ad_table_times_of *out);
void ad_table_times_destroy(ad_table_times_of *times);

ad_table_rank_worth ad_table_rank_worth_of(const ad_table_times_of *times, int32_t rank);
ad_table_worth ad_table_worth_of(const ad_table_times_of *times);

#endif
