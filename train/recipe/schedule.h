/* The section `schedule` of a recipe: the stages of its pipeline, and the order in which they compute. */
#ifndef RECIPE_SCHEDULE_H
#define RECIPE_SCHEDULE_H
#include "addend/recipe.h"

/* Complains about an unknown schedule, a schedule that does not fit the mesh, and a mesh that cannot be divided into
 * stages. Sets *stages to the number of stages, or to 0 if it is not known. */
void ad_recipe_check_schedule(const ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to, int64_t *stages);

/* Returns the name of the pipeline's schedule: schedule.kind or, if the recipe leaves it out, "interleaved" if a rank
 * has several stages, else "1f1b". */
const char *ad_recipe_schedule(const ad_recipe *recipe);

#endif
