/* The list of known bugs inside operations: in the ring of attention, in the positions of a sharded sequence, in the
 * slots of experts on other ranks, and in sums and statistics with fewer digits than promised. */
#ifndef TENSOR_KNOWN_BUGS_H
#define TENSOR_KNOWN_BUGS_H
#include "base/known_bugs.h"

const ad_known_bug *ad_tensor_known_bugs(size_t *count);

#endif
