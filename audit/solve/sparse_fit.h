/* Explains a sum without fitting every addend's count: by one factor on all addends, or by wrong counts of a few. */
#ifndef DIFF_SPARSE_FIT_H
#define DIFF_SPARSE_FIT_H
#include "solve/explain.h"

/* Tries to explain a part of many addends by one factor on all addends, or by other counts of a few addends. */
ad_status ad_try_sparse_fit(const ad_parts *parts, const double *expected, ad_judged *judged) AD_CHECKED;
/* Sets *out to 1 if some addend's count, estimated as if all other counts were right, differs from the expected
 * count by more than its error. A fit of all counts would give the same answer, unless addends are nearly parallel. */
ad_status ad_sparse_fit_differs(const ad_parts *parts, const double *expected, const ad_part *part,
                                int *out) AD_CHECKED;

#endif
