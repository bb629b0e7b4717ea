/* train.recompute: which layers run again in backward. */
#ifndef RECIPE_RECOMPUTE_H
#define RECIPE_RECOMPUTE_H
#include "recipe/patterns.h"

/* Returns the patterns of the layers that run again, one for each in *count, borrowed from the recipe: those of
 * train.recompute, none for `none`, and one that matches everything for `layers`. */
const char *const *ad_recipe_recompute(const ad_recipe *recipe, size_t *count);
/* Adds errors about train.recompute: words among patterns, and what names no layer of the program. */
void ad_recompute_check(ad_reading *reading, const ad_program *program);

#endif
