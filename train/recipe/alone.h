/* A recipe as one process runs it: every axis of every mesh keeps its name and gets size 1, so that types, names and
 * modules stay the same; a pipeline gets one stage. */
#ifndef RECIPE_ALONE_H
#define RECIPE_ALONE_H
#include "addend/recipe.h"

/* *out: `recipe` for one process, without ZeRO. *out borrows the texts and lists of `recipe`, except meshes, placement,
 * options and views; release it also after an error. */
ad_status ad_alone_create(const ad_recipe *recipe, ad_recipe *out) AD_CHECKED;
void ad_alone_release(ad_recipe *alone);

#endif
