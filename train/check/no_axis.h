/* Reasons why a cause, or a mutant, is reported without an axis. */
#ifndef CHECK_NO_AXIS_H
#define CHECK_NO_AXIS_H
#include <jansson.h>

#include "check/mutants.h"

/* Returns the word for documents; "axis_is_named" for AD_AXIS_IS_NAMED. */
const char *ad_no_axis_name(ad_no_axis why);
/* Returns a clause for people that explains such a word; "" for NULL and for an unknown word. */
const char *ad_no_axis_clause(const char *name);
/* Returns why the cause names no axes, or AD_AXIS_IS_NAMED if it names some. */
ad_no_axis ad_cause_no_axis(const ad_cause *cause);
/* Returns the axes that all causes name. If causes differ or name no axes, returns 0 and sets *why. */
ad_axes ad_causes_axes(const ad_causes *causes, ad_no_axis *why);
/* Like ad_causes_axes, for the verdict on a mutant, which may have no causes. */
ad_axes ad_mutant_axes(const ad_mutant *mutant, ad_no_axis *why);
/* Returns why the judgement of `addend diff` on a parameter has no axes, found from its counts of addends: whether all
 * counts are the same, or the counts within each microbatch. */
ad_no_axis ad_no_axis_of_counts(const json_t *judged);

#endif
