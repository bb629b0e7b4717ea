/* The list of known mistakes around a step: what a rank reads, what becomes of gradients after their reduction. */
#ifndef TRAIN_MISTAKES_H
#define TRAIN_MISTAKES_H
#include "base/mistakes.h"
#include "train/crossing.h"

const ad_mistake *ad_train_mistakes(size_t *count);
/* Whether some gradient of a module would count otherwise in the norm on another module's mesh. */
int ad_copies_differ_on_other_mesh(const ad_run *run);

/* Between modules: pool_mistakes.c. */
const ad_mistake *ad_pool_mistakes(size_t *count);
/* AD_NEED_...: which of them change something where this passes AD_SEAM_RETURNED; in a run that took a step. */
ad_needs ad_pool_mistakes_show(const ad_crossing_passing *passing);
ad_needs ad_pool_facts(const ad_run *run);

/* Of pipelines: pipeline_mistakes.c. */
const ad_mistake *ad_pipeline_mistakes(size_t *count);
ad_needs ad_pipeline_facts(const ad_run *run);

#endif
