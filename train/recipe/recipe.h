/* Questions about a recipe, asked by the code that plans, trains and exports. */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H
#include "addend/recipe.h"

int ad_recipe_gives(const ad_recipe *recipe, const char *key); /* returns 1 if the recipe gives "train.seed" */
int ad_recipe_is_disjoint(const ad_recipe *recipe);
/* Makes the program that the recipe names, with a precision policy and a storage for every parameter. dtype: 0; or
 * AD_F64, for checks, in place of every dtype of every policy. The program borrows recipe and comm. */
AD_CHECKED ad_status ad_recipe_program(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out);
/* Makes the precision policy of a parameter: precision, then every matching override in order, then completed. */
AD_CHECKED ad_status ad_recipe_precision_policy(const ad_recipe *recipe, const char *param, ad_precision_policy *out);
/* The storage layout of a parameter: from ZeRO-1 on, sharded along its first dimension, whatever its size, over the
 * axes that its layer lists in `sharded`. */
ad_layout ad_recipe_storage(const ad_recipe *recipe, const ad_param_spec *spec);

#endif
