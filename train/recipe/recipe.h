/* Questions about a recipe, asked by the code that plans, trains and exports. */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H
#include "addend/recipe.h"

int ad_recipe_gives(const ad_recipe *recipe, const char *key); /* 1: the recipe gives the key, such as "train.seed" */
int ad_recipe_is_disjoint(const ad_recipe *recipe);
/* Makes the program that the recipe names, every parameter with its precision policy and storage. dtype: 0, or AD_F64
 * for checks, which replaces every dtype of every precision policy. The program borrows recipe and comm. */
AD_CHECKED ad_status ad_recipe_program(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out);
/* Gives the precision policy of one parameter: precision, then every matching override in order, completed. */
AD_CHECKED ad_status ad_recipe_precision_policy(const ad_recipe *recipe, const char *param, ad_precision_policy *out);
/* The storage layout of a parameter: from ZeRO-1 on it is sharded along its first dimension over the axes that its
 * layer names (`sharded`), whatever its size. */
ad_layout ad_recipe_storage(const ad_recipe *recipe, const ad_param_spec *spec);

#endif
