/* Mistakes that are found without a fit of every addend: one factor on all of them, or a few that count otherwise. */
#ifndef DIFF_FEW_H
#define DIFF_FEW_H
#include "diff/explain.h"

/* Explains a part of many addends, if one of these does. */
ad_status ad_try_few(const ad_parts *parts, const double *expected, ad_judged *judged) AD_CHECKED;
/* Whether what is left of the part beside what is expected has nothing of any single addend, within its rounding: what
 * a fit would say too, unless addends are much alike. */
ad_status ad_few_differ(const ad_parts *parts, const double *expected, const ad_part *part, int *out) AD_CHECKED;

#endif
