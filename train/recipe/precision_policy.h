/* Precision policies (a parameter's dtypes): merges two of them, and completes one from a recipe. Also creates the
 * program that a recipe names. */
#ifndef RECIPE_PRECISION_POLICY_H
#define RECIPE_PRECISION_POLICY_H
#include "addend/recipe.h"
#include "recipe/patterns.h"

/* Returns `base` with the fields that are set in `over`. A field that is 0 in `over` is not set. */
ad_precision_policy ad_precision_policy_merge(ad_precision_policy base, ad_precision_policy over);
/* Completes the precision policy: sets its fields that are 0. The dtype of a gradient that is `raw` becomes that in
 * which the tape computes. Returns AD_INVALID if the policy contradicts itself, or if the reducer would refuse it. */
ad_status ad_recipe_complete(const ad_recipe *recipe, ad_precision_policy *policy) AD_CHECKED;
/* Returns the dtype in which tapes compute: `dtype`, or the recipe's dtype if `dtype` is 0. */
ad_dtype ad_recipe_compute(const ad_recipe *recipe, ad_dtype dtype);
/* Returns the program's setting from the recipe, except the meshes. */
ad_program_setting ad_recipe_setting(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype);
/* Creates the program with parameters as its layers declare them, still without storage and precision policies. */
ad_status ad_recipe_declare(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out) AD_CHECKED;
/* Sets of every parameter whether it is frozen, its storage and its precision policy. If `dtype` is not 0, all dtypes of all policies become
 * `dtype`. */
ad_status ad_recipe_specify(const ad_recipe *recipe, ad_program *program, ad_dtype dtype) AD_CHECKED;
/* Returns the patterns of precision.overrides. */
ad_patterns ad_recipe_overrides(const ad_recipe *recipe);
/* Warns once if parameters have other policies than in versions that merged all overrides that match a parameter. */
void ad_recipe_warn_of_overrides(const ad_recipe *recipe, const ad_program *program);
/* Returns the number of ranks of all meshes together. */
int64_t ad_recipe_ranks(const ad_recipe *recipe, const ad_mesh *const *meshes);
/* Returns AD_INVALID, with the numbers of ranks, if modules share their ranks but their meshes have different numbers
 * of ranks. */
ad_status ad_recipe_check_sizes(const ad_recipe *recipe, const ad_mesh *const *meshes) AD_CHECKED;

#endif
