/* Precision policies (a parameter's dtypes): overriding one with another, and completing them from a recipe. Also:
 * making the program that a recipe names. */
#ifndef RECIPE_PRECISION_POLICY_H
#define RECIPE_PRECISION_POLICY_H
#include "addend/recipe.h"

/* Returns `base` with the fields that `over` sets; fields that are 0 in `over` stay as in `base`. */
ad_precision_policy ad_precision_policy_merge(ad_precision_policy base, ad_precision_policy over);
/* Fills the precision policy's zero fields; a raw gradient has the dtype that the tape computes in. AD_INVALID if the
 * policy contradicts itself, or the reducer would refuse it. */
ad_status ad_recipe_complete(const ad_recipe *recipe, ad_precision_policy *policy) AD_CHECKED;
/* The dtype in which tapes compute: `dtype`, or the recipe's dtype if `dtype` is 0. */
ad_dtype ad_recipe_compute(const ad_recipe *recipe, ad_dtype dtype);
/* The program's setting from the recipe, without the meshes. */
ad_program_setting ad_recipe_setting(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype);
/* Makes the program, with parameters as its layers declare them: still without precision policies and storage. */
ad_status ad_recipe_declare(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out) AD_CHECKED;
/* Gives every parameter its storage and its policy; if `dtype` is not 0, it replaces every dtype of every policy. */
ad_status ad_recipe_specify(const ad_recipe *recipe, ad_program *program, ad_dtype dtype) AD_CHECKED;
/* The number of ranks of all meshes together. */
int64_t ad_recipe_ranks(const ad_recipe *recipe, const ad_mesh *const *meshes);
/* AD_INVALID, naming the sizes, if modules share their ranks but their meshes have different numbers of ranks. */
ad_status ad_recipe_check_sizes(const ad_recipe *recipe, const ad_mesh *const *meshes) AD_CHECKED;

#endif
