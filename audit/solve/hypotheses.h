/* Hypotheses about the counts in a sum: some addends have fixed counts, and all other addends have one common count,
 * which is free. One element of the sum is enough to test a hypothesis, and addends may be identical. */
#ifndef DIFF_HYPOTHESES_H
#define DIFF_HYPOTHESES_H
#include "solve/explain.h"
#include "solve/fit.h"

/* Sets why->counts by the first hypothesis that gives the part, and why->others by all further such hypotheses with
 * different counts. */
ad_status ad_try_hypotheses(const ad_parts *parts, const ad_products *products, const double *expected,
                            const ad_part *part, ad_explanation *why) AD_CHECKED;
/* Returns how far a fitted count with this standard error may be from the number to which it is rounded. */
double ad_count_tolerance(double error);
/* Returns 1 if two counts are equal within a fit's standard error `error`. */
int ad_counts_close(double a, double b, double error);
/* Returns the number nearest to `count` that a bug typically produces: a whole number, or one over the number of ranks
 * of some axes. */
double ad_simple_count(const ad_dump_mesh *mesh, double count);

#endif
