/* A table with its faults and measures, for the reports on it. */
#ifndef SCHEDULE_REPORT_H
#define SCHEDULE_REPORT_H
#include "schedule/times.h"

typedef struct ad_table_judged {
  const ad_table *table;
  ad_table_options options;
  ad_table_faults faults;
  int holds;               /* 1: the table breaks no law */
  ad_table_times_of times; /* set if `holds` is 1: the times at which actions begin and end */
  ad_table_worth worth;    /* set if `holds` is 1: makespan, bubble, activations and operands that ranks hold */
} ad_table_judged;

/* Checks a table against the laws and, if it breaks none, measures it. AD_INVALID only if the options are wrong.
 * Release with ad_table_judged_destroy. */
AD_CHECKED ad_status ad_table_judged_create(const ad_table *table, const ad_table_options *options,
                                            ad_table_judged *out);
void ad_table_judged_destroy(ad_table_judged *judged);

#endif
