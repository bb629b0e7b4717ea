/* The list of known bugs of reducers, which `addend check --mutate` installs one by one to see that they are killed. */
#ifndef REDUCE_KNOWN_BUGS_H
#define REDUCE_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "base/internal.h"

AD_INTERNAL const ad_known_bug *ad_reduce_known_bugs(size_t *count);

#endif
