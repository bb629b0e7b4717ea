/* The list of known bugs of reducers. `addend check --mutate` installs them one by one, to see that its checks kill
 * them. */
#ifndef REDUCE_KNOWN_BUGS_H
#define REDUCE_KNOWN_BUGS_H
#include "base/known_bugs.h"
#include "base/internal.h"

AD_INTERNAL const ad_known_bug *ad_reduce_known_bugs(size_t *count);
/* Lists the known bugs of parameters that are updated in smaller parts than they are stored. Defined in
 * spread_known_bugs.c. */
AD_INTERNAL const ad_known_bug *ad_reduce_spread_bugs(size_t *count);
/* Lists the known bugs of sums by leaves, for runs that have them. Defined in leaf_known_bugs.c. */
AD_INTERNAL const ad_known_bug *ad_reduce_leaf_bugs(size_t *count);

#endif
