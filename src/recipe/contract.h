/* Contracts one over the other, and as the rest of a recipe completes them. */
#ifndef RECIPE_CONTRACT_H
#define RECIPE_CONTRACT_H
#include "addend/recipe.h"

/* What `over` leaves at 0 stays as it is in `base`. */
ad_contract ad_contract_merge(ad_contract base, ad_contract over);
/* Fills zero fields; a raw gradient has the dtype that the tape computes in. AD_INVALID if it means nothing or the
 * reducer would refuse it. */
ad_status ad_recipe_complete(const ad_recipe *recipe, ad_contract *contract) AD_CHECKED;

#endif
