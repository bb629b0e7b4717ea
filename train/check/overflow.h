/* Counts the steps of a check that overflow f16, and finds the loss scale at which none does. */
#ifndef CHECK_OVERFLOW_H
#define CHECK_OVERFLOW_H
#include "check/checker.h"

/* Counts a step, on every rank, when its gradients are gathered. */
void ad_overflow_note(ad_checker *checker, const ad_step_report *report);
/* Called after the last step: AD_INVALID if all steps overflowed, so that nothing was judged. The message names the
 * scale, a parameter, and a scale that works, to which the run falls step by step as in training. The run cannot be
 * checked afterwards. Collective. */
ad_status ad_overflow_judge(ad_checker *checker) AD_CHECKED;

#endif
