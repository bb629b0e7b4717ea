/* Why the gradient's norm is wrong although every gradient is right: how often each parameter counts in it. */
#ifndef CHECK_NORM_H
#define CHECK_NORM_H
#include "check/checker.h"

/* On the first rank, after a step: compares each parameter's sum of squares, as the run's norm has it, with that of its
 * full gradient. Where these differ, writes to the result how often each parameter counted, which one changes the norm
 * most, and the causes. Does nothing if all agree, or if replicas of a gradient differ. Uses the checker's scratch. */
ad_status ad_norm_explain(ad_checker *checker) AD_CHECKED;

#endif
