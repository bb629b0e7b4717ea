/* Precision policies (a parameter's dtypes): overriding one with another, and completing them from a recipe; and the
 * program that a recipe names. */
#ifndef RECIPE_PRECISION_POLICY_H
#define RECIPE_PRECISION_POLICY_H
#include "addend/recipe.h"

/* Returns `base` with the fields that `over` sets; fields that are 0 in `over` stay as in `base`. */
ad_precision_policy ad_precision_policy_merge(ad_precision_policy base, ad_precision_policy over);
/* Fills the precision policy's zero fields; a raw gradient has the dtype that the tape computes in. AD_INVALID if the
 * policy contradicts itself, or the reducer would refuse it. */
ad_status ad_recipe_complete(const ad_recipe *recipe, ad_precision_policy *policy) AD_CHECKED;
/* The dtype in which tapes compute: `dtype`, or the recipe's if that is 0. */
ad_dtype ad_recipe_compute(const ad_recipe *recipe, ad_dtype dtype);
/* What the program gets of the recipe, without the meshes. */
ad_program_setting ad_recipe_setting(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype);
/* Makes the program, with its parameters as its layers declare them: without precision policies and storage. */
ad_status ad_recipe_declare(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out) AD_CHECKED;
/* Gives every parameter of the program its storage and precision policy; with `dtype`, a policy of that dtype alone. */
ad_status ad_recipe_specify(const ad_recipe *recipe, ad_program *program, ad_dtype dtype) AD_CHECKED;
/* How many ranks all meshes have together. */
int64_t ad_recipe_ranks(const ad_recipe *recipe, const ad_mesh *const *meshes);
/* AD_INVALID, naming the sizes, unless the meshes of modules that share their ranks have one size. */
ad_status ad_recipe_check_sizes(const ad_recipe *recipe, const ad_mesh *const *meshes) AD_CHECKED;

#endif
