/* Steps that overflow f16 in a proof: counting them, and finding the scale of the loss at which none does. */
#ifndef CHECK_OVERFLOW_H
#define CHECK_OVERFLOW_H
#include "check/prover.h"

/* After a step, when its gradients are whole: on every rank. */
void ad_overflow_note(ad_prover *prover, const ad_step_report *report);
/* When the last step was taken. AD_INVALID where all of them overflowed, so that nothing was judged: with the scale
 * that they overflow at, a parameter, and the scale that holds, to which the run falls step by step as in training. The
 * run is of no use for a proof then. Collective. */
ad_status ad_overflow_judge(ad_prover *prover) AD_CHECKED;

#endif
