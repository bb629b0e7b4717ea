/* The laws of a table, each in a file of its own. All add to the faults what they find. */
#ifndef SCHEDULE_LAWS_H
#define SCHEDULE_LAWS_H
#include "schedule/execute.h"
#include "schedule/index.h"

/* Every stage and microbatch: F once, then B once, or I and W once. */
void ad_table_law_once(const ad_table_index *index, ad_table_faults *faults);
/* Every action that names a stage stands on the stage's rank. */
void ad_table_law_stages(const ad_table_index *index, ad_table_faults *faults);
/* Transfers: each SEND has its RECV, on the right ranks, and both have one order on each edge. */
AD_CHECKED ad_status ad_table_law_pairs(const ad_table_index *index, ad_table_faults *faults);
/* What an action needs of its own rank stands before it. */
void ad_table_law_given(const ad_table_index *index, ad_table_faults *faults);
/* Parameters are gathered where F, B, I and W use them, and released. */
AD_CHECKED ad_status ad_table_law_gathered(const ad_table_index *index, ad_table_faults *faults);
/* Each stage's last reduction is there, behind every addend, and waited for where reductions are. */
AD_CHECKED ad_status ad_table_law_reduced(const ad_table_index *index, ad_table_faults *faults);
/* The end of the step: sums, norm and updates, each once and behind what it needs. */
void ad_table_law_end(const ad_table_index *index, ad_table_faults *faults);
/* The table runs to its end on paper; else the circle of waits. */
AD_CHECKED ad_status ad_table_law_circle(const ad_table_index *index, ad_sends sends, ad_table_faults *faults);
void ad_table_law_in_flight(const ad_table *table, int32_t limit, ad_table_faults *faults);

/* All of them, as the options ask; those that build on others only where these hold. */
AD_CHECKED ad_status ad_table_judge(const ad_table_index *index, const ad_table_options *options,
                                    ad_table_faults *faults);
/* Makes the index and judges. The index is to be destroyed whatever comes back. */
AD_CHECKED ad_status ad_table_judge_all(const ad_table *table, const ad_table_options *options, ad_table_index *index,
                                        ad_table_faults *faults);

#endif
