/* Lists of the known bugs around a step: in the batch that a rank reads, and in gradients after they are reduced. */
#ifndef TRAIN_KNOWN_BUGS_H
#define TRAIN_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "step/transfers.h"

const ad_known_bug *ad_train_known_bugs(size_t *count);
/* Returns 1 if, for some gradient, the known bug "norm-over-other-mesh" would count other replicas than the right
 * norm. */
int ad_replicas_differ_on_other_mesh(const ad_run *run);

/* Lists the known bugs of runs with train.leaves. Defined in leaf_known_bugs.c. */
const ad_known_bug *ad_train_leaf_bugs(size_t *count);

/* Lists the known bugs between modules. Defined in pool_known_bugs.c. */
const ad_known_bug *ad_pool_known_bugs(size_t *count);
/* Returns the AD_NEED_... bits of those known bugs between modules that would change the gradient of this transfer.
 * `passing` is the argument of functions at AD_INJECT_RETURNED. */
ad_needs ad_pool_known_bugs_show(const ad_transfer_passing *passing);
/* Returns those AD_NEED_... bits of known bugs between modules that this run has. The run must have taken a step. */
ad_needs ad_pool_facts(const ad_run *run);

/* Lists the known bugs of pipelines. Defined in pipeline_known_bugs.c. */
const ad_known_bug *ad_pipeline_known_bugs(size_t *count);
ad_needs ad_pipeline_facts(const ad_run *run);

/* Returns 1 if the transfer brings a frozen parameter, or a value that is computed from frozen parameters alone: no
 * gradient of it returns, and no step changes it. */
int ad_gives_frozen(const ad_run *run, const ad_transfer_spec *spec);

#endif
