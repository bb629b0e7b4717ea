/* Recognises sums that were formed over another group of ranks than the types say. */
#ifndef DIFF_GROUPS_H
#define DIFF_GROUPS_H
#include "solve/explain.h"

/* Tests whether the part is a sum over other axes than its types say. Writes to the explanation the sets of axes whose
 * sums give the part and, if nothing else explains the part, the counts of its addends in the first of these sums. */
ad_status ad_try_groups(ad_parts *parts, ad_judged *judged) AD_CHECKED;

#endif
