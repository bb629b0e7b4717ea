/* Whether a reference has the same addends with other weights: each microbatch right but for a factor of its own. */
#ifndef DIFF_REWEIGHED_H
#define DIFF_REWEIGHED_H
#include "diff/whole.h"

/* Words for how often each microbatch counts, of what it does in the reference; "" where the addends do not give the
 * reference within `bound` whatever their weights, where one has none of its own, or where all have the same. */
ad_status ad_reweighed_find(const ad_whole *whole, double bound, char *buffer, size_t size) AD_CHECKED;

#endif
