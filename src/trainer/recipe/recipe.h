/* What the folders above recipe/ read from a recipe. */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H
#include "addend/recipe.h"

int ad_recipe_gives(const ad_recipe *recipe, const char *key); /* the file or --set has it: "train.seed" */
int ad_recipe_is_disjoint(const ad_recipe *recipe);
/* The program that it names, every parameter with its contract and storage as the recipe says; dtype 0, or AD_F64 for
 * proofs: every dtype of every contract. Borrows recipe and comm. */
AD_CHECKED ad_status ad_recipe_program(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out);
/* The contract of one parameter: precision, then every matching override in order, completed. */
AD_CHECKED ad_status ad_recipe_contract(const ad_recipe *recipe, const char *param, ad_contract *out);
/* Where a parameter is kept: cut along its first dimension over the axes that its layer names
 * (`sharded`), whatever its size, from ZeRO-1 on. */
ad_layout ad_recipe_storage(const ad_recipe *recipe, const ad_param_spec *spec);

#endif
