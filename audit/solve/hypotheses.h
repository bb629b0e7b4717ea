/* Hypotheses of what a sum holds: some addends have fixed counts, all others have one count that is free. One
 * element of the sum is enough to try them, and addends may be alike. */
#ifndef DIFF_HYPOTHESES_H
#define DIFF_HYPOTHESES_H
#include "solve/explain.h"
#include "solve/fit.h"

/* Fills why->counts by the first hypothesis that gives the part, and why->others by further ones whose counts
 * differ. */
ad_status ad_try_hypotheses(const ad_parts *parts, const ad_products *products, const double *expected,
                            const ad_part *part, ad_explanation *why) AD_CHECKED;
/* How far a fitted count of this error may be from the number that it is taken for. */
double ad_count_tolerance(double error);
/* The number nearest to `count` that a mistake makes: a whole number, or one over the number of ranks of some axes. */
double ad_simple_count(const ad_dump_mesh *mesh, double count);

#endif
