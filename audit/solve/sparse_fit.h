/* Mistakes that can be found without fitting every addend: one factor on all addends, or another count for a few. */
#ifndef DIFF_SPARSE_FIT_H
#define DIFF_SPARSE_FIT_H
#include "solve/explain.h"

/* Explains a part that has many addends, if one factor or other counts of a few addends do. */
ad_status ad_try_sparse_fit(const ad_parts *parts, const double *expected, ad_judged *judged) AD_CHECKED;
/* *out = whether some single addend's count differs from the expected one by more than its error: what a fit of all
 * counts would say too, unless addends are nearly parallel. */
ad_status ad_sparse_fit_differs(const ad_parts *parts, const double *expected, const ad_part *part,
                                int *out) AD_CHECKED;

#endif
