/* The list of known mistakes of reducers, which a proof plants one by one to see that it notices them. */
#ifndef REDUCE_MISTAKES_H
#define REDUCE_MISTAKES_H
#include "base/mistakes.h"
#include "base/internal.h"

AD_INTERNAL const ad_mistake *ad_reduce_mistakes(size_t *count);

#endif
