/* A recipe as one process takes it: every axis of every mesh of size 1 under the same name, so that types, names and
 * modules stay what they are; but a pipeline has one stage. */
#ifndef RECIPE_ALONE_H
#define RECIPE_ALONE_H
#include "addend/recipe.h"

/* Without ZeRO, whatever the recipe says. It borrows the recipe's texts and lists but for meshes, placement, options
 * and views; release it also after an error. */
ad_status ad_alone_create(const ad_recipe *recipe, ad_recipe *out) AD_CHECKED;
void ad_alone_release(ad_recipe *alone);

#endif
