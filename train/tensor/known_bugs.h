/* The list of known bugs inside operations: in the ring of attention, positions of a sharded sequence, slots of experts
 * on other ranks, and sums and statistics in fewer digits than promised. */
#ifndef TENSOR_KNOWN_BUGS_H
#define TENSOR_KNOWN_BUGS_H
#include "base/known_bugs.h"

const ad_known_bug *ad_tensor_known_bugs(size_t *count);

#endif
