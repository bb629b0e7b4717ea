/* Questions about a recipe, for the code that plans, trains and exports it. */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H
#include "addend/recipe.h"
#include "recipe/sharding.h"

int ad_recipe_gives(const ad_recipe *recipe, const char *key); /* returns 1 if the recipe gives this key, such as
                                                                * "train.seed" */
int ad_recipe_is_disjoint(const ad_recipe *recipe);
/* Creates the program that the recipe names, with a precision policy and a storage for every parameter. `dtype` is 0,
 * or AD_F64 in place of every dtype of every policy, for checks. The program borrows recipe and comm. */
AD_CHECKED ad_status ad_recipe_program(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out);
/* Sets *out to the precision policy of a parameter: the recipe's policy, changed by the first override that matches, and
 * then completed (ad_recipe_complete). */
AD_CHECKED ad_status ad_recipe_precision_policy(const ad_recipe *recipe, const char *param, ad_precision_policy *out);
/* Returns the storage layout of a parameter. From ZeRO 1 on it is sharded along its first dimension, whatever the size
 * of this dimension, over the axes that its layer lists in `sharded`. A frozen parameter, which has no gradient and no
 * states that could be sharded with it, is so only with ZeRO 3. */
ad_layout ad_recipe_storage(const ad_recipe_sharding *sharding, const ad_param_spec *spec);

#endif
