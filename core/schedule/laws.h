/* The laws of tables; a table is right if it breaks none. Each law has its own file, and its function adds the
 * faults. */
#ifndef SCHEDULE_LAWS_H
#define SCHEDULE_LAWS_H
#include "schedule/execute.h"
#include "schedule/index.h"

/* Law: every stage performs F once for every microbatch, then B once, or I and W once. */
void ad_table_law_once(const ad_table_index *index, ad_table_faults *faults);
/* Law: every action of a stage is in the list of the stage's rank. */
void ad_table_law_stages(const ad_table_index *index, ad_table_faults *faults);
/* Law: each SEND has its RECV, on the right ranks, and in each channel messages are received in the order of sending.
 * `pairs` says what a channel is: a pair of ranks, or one direction of an edge. */
AD_CHECKED ad_status ad_table_law_pairs(const ad_table_index *index, ad_table_pairs pairs, ad_table_faults *faults);
/* Law: the actions that an action needs from its own rank come before it in the rank's list. */
void ad_table_law_given(const ad_table_index *index, ad_table_faults *faults);
/* Law: a stage's parameters are gathered when F, B, I and W use them, and released at the end. */
AD_CHECKED ad_status ad_table_law_gathered(const ad_table_index *index, ad_table_faults *faults);
/* Law: each stage's last reduction comes after all addends of the stage; if the table has WAIT_REDUCE, no reduction is
 * in flight at the end. */
AD_CHECKED ad_status ad_table_law_reduced(const ad_table_index *index, ad_table_faults *faults);
/* Law: SUMS, NORM and UPDATE occur once each, after the actions that they need. */
void ad_table_law_end(const ad_table_index *index, ad_table_faults *faults);
/* Law: a simulation of the table reaches the end. If it does not, the fault names the circle of waits. */
AD_CHECKED ad_status ad_table_law_circle(const ad_table_index *index, ad_sends sends, ad_table_faults *faults);
/* Law: no rank has more than `limit` activations in flight; 0: no limit. */
void ad_table_law_in_flight(const ad_table *table, int32_t limit, ad_table_faults *faults);

/* Checks all laws, with the options' limits. If the table breaks a law, laws that have no meaning for it then are
 * skipped. */
AD_CHECKED ad_status ad_table_judge(const ad_table_index *index, const ad_table_options *options,
                                    ad_table_faults *faults);
/* Makes the index and checks the laws. The caller destroys the index whether or not the function succeeds. */
AD_CHECKED ad_status ad_table_judge_all(const ad_table *table, const ad_table_options *options, ad_table_index *index,
                                        ad_table_faults *faults);

#endif
