/* The list of known mistakes inside operations: passing keys around a ring, positions of a cut sequence, slots whose
 * experts are on other ranks, sums and statistics in fewer digits than promised. */
#ifndef TENSOR_MISTAKES_H
#define TENSOR_MISTAKES_H
#include "base/mistakes.h"

const ad_mistake *ad_tensor_mistakes(size_t *count);

#endif
