/* The list of known bugs inside operations: in the ring of attention, in the positions of a sharded sequence, in the
 * exchange of rows with experts on other ranks, and in sums and statistics that are computed with too few digits. */
#ifndef TENSOR_KNOWN_BUGS_H
#define TENSOR_KNOWN_BUGS_H
#include "base/known_bugs.h"

const ad_known_bug *ad_tensor_known_bugs(size_t *count);

#endif
