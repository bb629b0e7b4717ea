/* Explains gradients that were wrong before they were summed: the addends that ranks submitted are not parts of the
 * reference's gradient. */
#ifndef CHECK_COMPUTED_H
#define CHECK_COMPUTED_H
#include "check/mutation.h"
#include "check/result.h"

/* ad_computed_explain sets, for every parameter whose addends are or may be wrong, the causes that remain: transitions
 * that the addends passed, grouped by axes (of the forward pass if the loss is wrong, too; else of the backward pass),
 * and a formula in between. */
int ad_place_is_count(const ad_place *place); /* whether the transition sums the count that losses are divided by */
void ad_computed_explain(const ad_places *places, ad_check_result *result);

#endif
