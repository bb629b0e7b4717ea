/* The section `schedule` of a recipe: the stages of its pipeline, and the order in which they work. */
#ifndef RECIPE_SCHEDULE_H
#define RECIPE_SCHEDULE_H
#include "addend/recipe.h"

/* Complains of a schedule that is none, that does not fit the mesh, and of a mesh that has no stages. *stages: how many
 * there are; 0: that is not known. */
void ad_recipe_check_schedule(const ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to, int64_t *stages);

#endif
