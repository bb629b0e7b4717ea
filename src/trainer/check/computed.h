/* Where gradients went wrong before anything summed them: the addends that ranks handed in are no parts of the
 * reference's gradient. */
#ifndef CHECK_COMPUTED_H
#define CHECK_COMPUTED_H
#include "check/planting.h"
#include "check/proof.h"

/* Gives every parameter whose addends are wrong, or may be, the transitions that its addends passed, of the forward
 * pass where the loss is wrong too and of the way back otherwise, by the axes over which they go; and that it may be
 * none of them. */
int ad_place_is_count(const ad_place *place); /* of a number that losses are divided by */
void ad_computed_explain(const ad_places *places, ad_proof *proof);

#endif
