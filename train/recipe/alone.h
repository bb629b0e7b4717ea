/* A recipe changed to run in one process. Every axis of every mesh gets size 1 and keeps its name, so types, names and
 * modules stay the same. A pipeline gets one stage. */
#ifndef RECIPE_ALONE_H
#define RECIPE_ALONE_H
#include "addend/recipe.h"

/* Makes *out, which is `recipe` for one process, without ZeRO. *out owns its meshes, placement, options and views, and
 * borrows other texts and lists of `recipe`. Release it even after an error. */
ad_status ad_alone_create(const ad_recipe *recipe, ad_recipe *out) AD_CHECKED;
/* Like ad_alone_create, but for a recipe with leaves and the ranks of one data-parallel position: only dp_replicate,
 * dp_shard and pp get size 1, other axes keep their sizes, and views have their part that lies on these ranks. */
ad_status ad_alone_create_position(const ad_recipe *recipe, ad_recipe *out) AD_CHECKED;
void ad_alone_release(ad_recipe *alone);

#endif
