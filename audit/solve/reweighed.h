/* Tests whether the dump differs from the reference only in the weights of microbatches: each microbatch is right
 * except for a factor of its own. */
#ifndef DIFF_REWEIGHED_H
#define DIFF_REWEIGHED_H
#include "read/full.h"

enum { AD_REWEIGHED_MAX = 256 }; /* the most microbatches whose weights are looked for */

/* Sets *weights to how often the dumped sums count each microbatch, relative to the reference: one number for each, in
 * memory that ad_release frees. *weights is NULL if no weights of the microbatches give the reference within `bound`,
 * if some weight is unknown, or if all weights are equal. */
ad_status ad_reweighed_find(const ad_full *full, double bound, double **weights) AD_CHECKED;

#endif
