/* A recipe changed to run in one process: every axis of every mesh gets size 1 and keeps its name, so that types,
 * names and modules stay the same. A pipeline gets one stage. */
#ifndef RECIPE_ALONE_H
#define RECIPE_ALONE_H
#include "addend/recipe.h"

/* Sets *out to `recipe` for one process, without ZeRO. *out has its own meshes, placement, options and views, and
 * borrows the other texts and lists of `recipe`; release it also after an error. */
ad_status ad_alone_create(const ad_recipe *recipe, ad_recipe *out) AD_CHECKED;
void ad_alone_release(ad_recipe *alone);

#endif
