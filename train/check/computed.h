/* Finds causes of gradients that were wrong before they were summed: the addends that ranks submitted are wrong
 * themselves. */
#ifndef CHECK_COMPUTED_H
#define CHECK_COMPUTED_H
#include "check/mutation.h"
#include "check/result.h"

/* ad_computed_explain finds causes for every parameter whose addends are or may be wrong. Possible causes are
 * transitions that the addends passed, grouped by axes (of the forward pass if the loss is wrong, too; else of the
 * backward pass), and a formula in between. */
int ad_place_is_count(const ad_place *place); /* returns 1 if the transition sums a count that losses are divided by */
void ad_computed_explain(const ad_places *places, ad_check_result *result);

#endif
