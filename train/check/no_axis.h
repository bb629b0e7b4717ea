/* Why a cause, or a mutant, is reported without an axis. */
#ifndef CHECK_NO_AXIS_H
#define CHECK_NO_AXIS_H
#include <jansson.h>

#include "check/mutants.h"

/* The word in documents; "axis_is_named" for AD_AXIS_IS_NAMED. */
const char *ad_no_axis_name(ad_no_axis why);
/* What the word of a document means, a clause for people; "" for NULL and for a word that is not known. */
const char *ad_no_axis_clause(const char *name);
/* Why the cause has no axes; AD_AXIS_IS_NAMED: it has. */
ad_no_axis ad_cause_no_axis(const ad_cause *cause);
/* The axes that all of the causes name; 0, and in *why the reason, if they differ or name none. */
ad_axes ad_causes_axes(const ad_causes *causes, ad_no_axis *why);
/* The same of a mutant's verdict, where there may be no causes. */
ad_axes ad_mutant_axes(const ad_mutant *mutant, ad_no_axis *why);
/* Why the judgement of `addend diff` on a parameter has no axes, from its counts of addends: whether all are the same,
 * or those of each microbatch. */
ad_no_axis ad_no_axis_of_counts(const json_t *judged);

#endif
