/* Tests whether the dump differs from the reference only in the weights of microbatches: each microbatch is right
 * except for a factor of its own. */
#ifndef DIFF_REWEIGHED_H
#define DIFF_REWEIGHED_H
#include "read/full.h"

/* Prints how often each microbatch counts, relative to the reference. Prints "" if no weights of the microbatches give
 * the reference within `bound`, if some weight is unknown, or if all weights are equal. */
ad_status ad_reweighed_find(const ad_full *full, double bound, char *buffer, size_t size) AD_CHECKED;

#endif
