/* Finds causes of gradients that were wrong before they were summed: the addends that ranks submitted are wrong
 * themselves. */
#ifndef CHECK_COMPUTED_H
#define CHECK_COMPUTED_H
#include "check/mutation.h"
#include "check/result.h"

/* ad_computed_explain finds causes for every parameter whose addends are or may be wrong. Possible causes are the
 * transitions that the addends passed, grouped by axes, and a formula between them. If the loss is wrong, too, these
 * are transitions of the forward pass, otherwise of the backward pass. */
int ad_place_is_count(const ad_place *place); /* returns 1 if the transition sums a count that losses are divided by */
void ad_computed_explain(const ad_places *places, ad_check_result *result);

#endif
