/* The list of known bugs inside operations: in the ring of attention, in the positions of a sharded sequence, in the
 * exchange of rows with experts on other ranks, and in sums and statistics that are computed with too few digits. */
#ifndef TENSOR_KNOWN_BUGS_H
#define TENSOR_KNOWN_BUGS_H
#include "base/known_bugs.h"

/* Returns the needs that an operation of a layer that runs again meets; `passing` as at AD_INJECT_RERUN. */
ad_needs ad_rerun_shows(const void *passing);
const ad_known_bug *ad_tensor_known_bugs(size_t *count);

#endif
