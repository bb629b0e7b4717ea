/* Lists of the known mistakes around a step: in what a rank reads, and in what becomes of gradients after their
 * reduction. */
#ifndef TRAIN_MISTAKES_H
#define TRAIN_MISTAKES_H
#include "base/mistakes.h"
#include "step/crossing.h"

const ad_mistake *ad_train_mistakes(size_t *count);
/* Whether some gradient's copies would be counted differently in the norm if positions were taken on another module's
 * mesh. */
int ad_copies_differ_on_other_mesh(const ad_run *run);

/* Mistakes between modules: pool_mistakes.c. */
const ad_mistake *ad_pool_mistakes(size_t *count);
/* Which of these mistakes would change something at this crossing (a value of AD_SEAM_RETURNED), as AD_NEED_...
 * bits. */
ad_needs ad_pool_mistakes_show(const ad_crossing_passing *passing);
/* Which of them this run can show, as AD_NEED_... bits; the run must have taken a step. */
ad_needs ad_pool_facts(const ad_run *run);

/* Mistakes of pipelines: pipeline_mistakes.c. */
const ad_mistake *ad_pipeline_mistakes(size_t *count);
ad_needs ad_pipeline_facts(const ad_run *run);

#endif
