/* Lists of the known bugs around a step: in the batch that a rank reads, and in gradients after their reduction. */
#ifndef TRAIN_KNOWN_BUGS_H
#define TRAIN_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "step/transfers.h"

const ad_known_bug *ad_train_known_bugs(size_t *count);
/* Returns 1 if the norm would count some gradient's replicas differently with positions on another module's mesh. */
int ad_replicas_differ_on_other_mesh(const ad_run *run);

/* Known bugs between modules: pool_known_bugs.c. */
const ad_known_bug *ad_pool_known_bugs(size_t *count);
/* Returns, as AD_NEED_... bits, which of these known bugs would change something at this transfer (a value of
 * AD_INJECT_RETURNED). */
ad_needs ad_pool_known_bugs_show(const ad_transfer_passing *passing);
/* Returns, as AD_NEED_... bits, which of these known bugs the run can show; the run must have taken a step. */
ad_needs ad_pool_facts(const ad_run *run);

/* Known bugs of pipelines: pipeline_known_bugs.c. */
const ad_known_bug *ad_pipeline_known_bugs(size_t *count);
ad_needs ad_pipeline_facts(const ad_run *run);

#endif
