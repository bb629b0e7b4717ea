/* The laws of tables; a right table keeps them all. Each law has its own file; each function adds its faults. */
#ifndef SCHEDULE_LAWS_H
#define SCHEDULE_LAWS_H
#include "schedule/execute.h"
#include "schedule/index.h"

/* Every stage does F once for every microbatch, then B once, or I and W once. */
void ad_table_law_once(const ad_table_index *index, ad_table_faults *faults);
/* Every action that names a stage is in the list of the stage's rank. */
void ad_table_law_stages(const ad_table_index *index, ad_table_faults *faults);
/* Transfers: each SEND has its RECV, on the right ranks. Unless `pairs` is AD_TABLE_PAIRS_OF_SOURCE, messages are
 * matched by their order, so they must be received in the order of sending. */
AD_CHECKED ad_status ad_table_law_pairs(const ad_table_index *index, ad_table_pairs pairs, ad_table_faults *faults);
/* Actions that an action needs from its own rank come before it in the rank's list. */
void ad_table_law_given(const ad_table_index *index, ad_table_faults *faults);
/* Parameters are gathered where F, B, I and W use them, and released in the end. */
AD_CHECKED ad_status ad_table_law_gathered(const ad_table_index *index, ad_table_faults *faults);
/* Each stage's last reduction comes after all its addends; if the table waits for reductions, also for the last. */
AD_CHECKED ad_status ad_table_law_reduced(const ad_table_index *index, ad_table_faults *faults);
/* The end of the step: sums, norm and updates each occur once, after the actions that they need. */
void ad_table_law_end(const ad_table_index *index, ad_table_faults *faults);
/* A simulation of the table reaches its end. If it does not, the fault names the circle of waits. */
AD_CHECKED ad_status ad_table_law_circle(const ad_table_index *index, ad_sends sends, ad_table_faults *faults);
/* No rank has more than `limit` activations in flight; 0: there is no limit. */
void ad_table_law_in_flight(const ad_table *table, int32_t limit, ad_table_faults *faults);

/* Checks all laws that the options ask for. If a table breaks a law, skips the laws that rely on it. */
AD_CHECKED ad_status ad_table_judge(const ad_table_index *index, const ad_table_options *options,
                                    ad_table_faults *faults);
/* Makes the index and checks the laws. The caller destroys the index, whatever is returned. */
AD_CHECKED ad_status ad_table_judge_all(const ad_table *table, const ad_table_options *options, ad_table_index *index,
                                        ad_table_faults *faults);

#endif
