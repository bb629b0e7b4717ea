/* A check without a reference: the difference quotient of the distributed loss against <gradient, direction>. */
#ifndef CHECK_DIRECTIONAL_H
#define CHECK_DIRECTIONAL_H
#include "addend/train.h"
#include "check/result.h"

/* Takes step 0 of the run. On the first rank fills the check's difference, derivative, directional_err, loss, norm and
 * count.
 *
 * job->is_slope: this check accompanies a check against one process, for programs that did not ask for it. If the loss
 * has a kink (relu) within the difference quotient, a closer quotient counts, or a gradient between the slopes to both
 * sides. `stopped` names a constant that changes with the parameters, since no gradient goes through it. */
ad_status ad_directional(ad_comm *comm, ad_run *run, const ad_check_job *job) AD_CHECKED;

#endif
