/* Counts the steps of a check that overflow f16, and finds a loss scale at which none overflows. */
#ifndef CHECK_OVERFLOW_H
#define CHECK_OVERFLOW_H
#include "check/checker.h"

/* Counts a step, taken or skipped, on every rank, after its gradients were gathered. */
void ad_overflow_note(ad_checker *checker, const ad_step_report *report);
/* Called after the last step: returns AD_INVALID if all steps overflowed, so that nothing was judged. The message names
 * the scale, a parameter, and a scale that works, which is found as in training: the run takes steps, and each overflow
 * lowers the scale. The run cannot be checked afterwards. Collective. */
ad_status ad_overflow_judge(ad_checker *checker) AD_CHECKED;

#endif
