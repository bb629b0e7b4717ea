/* A check without a reference: compares the difference quotient of the distributed loss with <gradient, direction>. */
#ifndef CHECK_DIRECTIONAL_H
#define CHECK_DIRECTIONAL_H
#include "addend/train.h"
#include "check/result.h"

/* Takes step 0 of the run. On the first rank sets difference, derivative, directional_err, loss, norm and count of the
 * check's result.
 *
 * If job->is_slope, this check was not asked for: it accompanies the check of a custom program against one process. If
 * the loss then has a kink (relu) within the difference quotient, it is enough that a quotient over a shorter distance
 * fits, or that the gradient lies between the slopes on both sides. `stopped` of the result names a constant that
 * changes with the parameters, because no gradient goes through a constant. */
ad_status ad_directional(ad_comm *comm, ad_run *run, const ad_check_job *job) AD_CHECKED;

#endif
