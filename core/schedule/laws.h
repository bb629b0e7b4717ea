/* The laws that a right table keeps, each in a file of its own. Each function adds the faults that it finds. */
#ifndef SCHEDULE_LAWS_H
#define SCHEDULE_LAWS_H
#include "schedule/execute.h"
#include "schedule/index.h"

/* Every stage does F once for every microbatch, then B once, or I and W once. */
void ad_table_law_once(const ad_table_index *index, ad_table_faults *faults);
/* Every action that names a stage stands on the stage's rank. */
void ad_table_law_stages(const ad_table_index *index, ad_table_faults *faults);
/* Transfers: each SEND has its RECV, on the right ranks, and what is matched in order (`pairs`: not
 * AD_TABLE_PAIRS_OF_SOURCE) is sent and received in one order. */
AD_CHECKED ad_status ad_table_law_pairs(const ad_table_index *index, ad_table_pairs pairs, ad_table_faults *faults);
/* What an action needs of its own rank stands before it in the rank's list. */
void ad_table_law_given(const ad_table_index *index, ad_table_faults *faults);
/* Parameters are gathered where F, B, I and W use them, and released in the end. */
AD_CHECKED ad_status ad_table_law_gathered(const ad_table_index *index, ad_table_faults *faults);
/* Each stage has a last reduction, which stands after every addend; where reductions are waited for, it is too. */
AD_CHECKED ad_status ad_table_law_reduced(const ad_table_index *index, ad_table_faults *faults);
/* The end of the step: sums, norm and updates stand each once, after what they need. */
void ad_table_law_end(const ad_table_index *index, ad_table_faults *faults);
/* The table runs to its end on paper. If it does not, the fault names the circle of waits. */
AD_CHECKED ad_status ad_table_law_circle(const ad_table_index *index, ad_sends sends, ad_table_faults *faults);
/* No rank has more than `limit` activations in flight; 0: there is no limit. */
void ad_table_law_in_flight(const ad_table *table, int32_t limit, ad_table_faults *faults);

/* Asks all laws that the options ask for; laws that build on others only where those hold. */
AD_CHECKED ad_status ad_table_judge(const ad_table_index *index, const ad_table_options *options,
                                    ad_table_faults *faults);
/* Makes the index and asks the laws. The caller destroys the index, whatever is returned. */
AD_CHECKED ad_status ad_table_judge_all(const ad_table *table, const ad_table_options *options, ad_table_index *index,
                                        ad_table_faults *faults);

#endif
