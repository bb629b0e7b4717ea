/* Single hypotheses of what a sum holds: fixed counts of some addends and one free number that is the count of the
 * others. They need no more elements than one, and no addends that can be told apart. */
#ifndef DIFF_HYPOTHESES_H
#define DIFF_HYPOTHESES_H
#include "diff/explain.h"
#include "diff/fit.h"

/* Fills counts with the first hypothesis that gives the part, and others with those of further ones, where they differ.
 */
ad_status ad_try_hypotheses(const ad_parts *parts, const ad_products *products, const double *expected,
                            const ad_part *part, ad_explanation *why) AD_CHECKED;
/* How far a fitted count may be from what it is taken for. */
double ad_count_tolerance(double error);
/* The number next to `count` that a mistake would make: a whole one, or one over the size of a group of axes. */
double ad_simple_count(const ad_dump_mesh *mesh, double count);

#endif
