/* Recognising sums that were made over another group of ranks than the types say. */
#ifndef DIFF_GROUPS_H
#define DIFF_GROUPS_H
#include "diff/explain.h"

/* Looks among the sums over other axes for those that give the part; where there are some, the explanation has their
 * axes, and where nothing else explains it the counts of those of its addends that are the part's own, of the first. */
ad_status ad_try_groups(ad_parts *parts, ad_judged *judged) AD_CHECKED;

#endif
