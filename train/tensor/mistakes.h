/* The list of known mistakes inside operations: in the ring of attention, positions of a cut sequence, slots of experts
 * on other ranks, and sums and statistics in fewer digits than promised. */
#ifndef TENSOR_MISTAKES_H
#define TENSOR_MISTAKES_H
#include "base/mistakes.h"

const ad_mistake *ad_tensor_mistakes(size_t *count);

#endif
