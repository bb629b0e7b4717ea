/* Explains a wrong gradient norm although every gradient is right: finds how often each parameter counts in the
 * norm. */
#ifndef CHECK_NORM_H
#define CHECK_NORM_H
#include "check/checker.h"

/* On the first rank, after a step: compares each parameter's sum of squares in the run's norm with that of its full
 * gradient. If some differ, writes to the result how often each parameter was counted, which parameter changes the norm
 * most, and the causes. Does nothing if all agree, or if replicas of a gradient differ. Uses the checker's scratch
 * array. */
ad_status ad_norm_explain(ad_checker *checker) AD_CHECKED;

#endif
