/* A table that is judged by the laws and measured, for all that reports on it. */
#ifndef SCHEDULE_REPORT_H
#define SCHEDULE_REPORT_H
#include "schedule/times.h"

typedef struct ad_table_judged {
  const ad_table *table;
  ad_table_options options;
  ad_table_faults faults;
  int holds;               /* 1: the table keeps all laws */
  ad_table_times_of times; /* valid if `holds`: when actions start and end */
  ad_table_worth worth;    /* valid if `holds`: makespan, bubble, what ranks hold */
} ad_table_judged;

/* Judges and measures a table. AD_INVALID only for options that are wrong. Release with ad_table_judged_destroy. */
AD_CHECKED ad_status ad_table_judged_create(const ad_table *table, const ad_table_options *options,
                                            ad_table_judged *out);
void ad_table_judged_destroy(ad_table_judged *judged);

#endif
