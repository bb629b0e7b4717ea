/* Frozen parameters in a check: they have no gradient to compare, and no step may change a bit of their values on any
 * rank. */
#ifndef CHECK_FROZEN_H
#define CHECK_FROZEN_H
#include "check/checker.h"

/* Before a step: notes the values that this rank has. */
void ad_frozen_begin(ad_checker *checker);
/* After the step: compares the values with those before it, and judges them on the first rank. Collective if a parameter
 * is frozen. */
ad_status ad_frozen_end(ad_checker *checker, int64_t step) AD_CHECKED;

#endif
