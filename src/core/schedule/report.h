/* A table judged and measured, for those that tell it. */
#ifndef SCHEDULE_REPORT_H
#define SCHEDULE_REPORT_H
#include "schedule/times.h"

typedef struct ad_table_judged {
  const ad_table *table;
  ad_table_options options;
  ad_table_faults faults;
  int holds;
  ad_table_times_of times; /* where it holds */
  ad_table_worth worth;    /* the same */
} ad_table_judged;

/* AD_INVALID only for options that are wrong. Release with ad_table_judged_destroy. */
AD_CHECKED ad_status ad_table_judged_create(const ad_table *table, const ad_table_options *options,
                                            ad_table_judged *out);
void ad_table_judged_destroy(ad_table_judged *judged);

#endif
