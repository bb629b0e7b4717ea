/* The list of known mistakes inside operations that communicate: passing keys around a ring, positions of a cut
 * sequence, slots whose experts are on other ranks. */
#ifndef TENSOR_MISTAKES_H
#define TENSOR_MISTAKES_H
#include "base/mistakes.h"

const ad_mistake *ad_tensor_mistakes(size_t *count);

#endif
