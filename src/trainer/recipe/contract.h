/* Contracts one over the other, and as the rest of a recipe completes them; the program as a recipe names it. */
#ifndef RECIPE_CONTRACT_H
#define RECIPE_CONTRACT_H
#include "addend/recipe.h"

/* What `over` leaves at 0 stays as it is in `base`. */
ad_contract ad_contract_merge(ad_contract base, ad_contract over);
/* Fills zero fields; a raw gradient has the dtype that the tape computes in. AD_INVALID if it means nothing or the
 * reducer would refuse it. */
ad_status ad_recipe_complete(const ad_recipe *recipe, ad_contract *contract) AD_CHECKED;
/* In which tapes compute: `dtype`, or 0: what the recipe says. */
ad_dtype ad_recipe_compute(const ad_recipe *recipe, ad_dtype dtype);
/* What the program is given, but for its meshes. */
ad_program_setting ad_recipe_setting(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype);
/* The program with its parameters as its layers declared them: without contracts and storage. */
ad_status ad_recipe_declare(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out) AD_CHECKED;
/* Gives every parameter its storage, and its contract or one with `dtype` everywhere. */
ad_status ad_recipe_specify(const ad_recipe *recipe, ad_program *program, ad_dtype dtype) AD_CHECKED;
/* How many ranks the meshes have together. */
int64_t ad_recipe_ranks(const ad_recipe *recipe, const ad_mesh *const *meshes);
/* Modules that share their ranks have meshes of one size. AD_INVALID names the sizes. */
ad_status ad_recipe_check_sizes(const ad_recipe *recipe, const ad_mesh *const *meshes) AD_CHECKED;

#endif
