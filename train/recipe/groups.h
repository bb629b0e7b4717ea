/* The key `groups`: which group a parameter is in, and what the optimizer of each group is. Groups are numbered as in
 * ad_optimizer_setup: group 0 has the parameters that no pattern matches, and group i + 1 those of which entry i of the
 * key is the first that matches. */
#ifndef RECIPE_GROUPS_H
#define RECIPE_GROUPS_H
#include "recipe/entries.h"

extern const ad_entry_kind ad_group_entries; /* entries are ad_recipe_group */

/* Reads the list of groups into the recipe. Sets *good to 0 if it adds an error. */
AD_CHECKED ad_status ad_groups_read(ad_reading *reading, const ad_node *node, int *good);
/* Adds errors about groups that do not fit the parameters of the program, whose specs are complete. */
void ad_groups_check(ad_reading *reading, const ad_program *program);

/* Returns the number of groups: one more than the key has entries, at most AD_GROUPS_MAX. */
size_t ad_recipe_group_count(const ad_recipe *recipe);
size_t ad_recipe_group_of(const ad_recipe *recipe, const char *param); /* returns the number of a parameter's group */
int ad_recipe_freezes(const ad_recipe *recipe, const char *param);     /* returns 1 if a parameter's group is frozen */
/* Returns the kind of a group's optimizer; of a frozen group that of group 0. */
ad_optimizer_kind ad_recipe_group_kind(const ad_recipe *recipe, size_t group);
/* Returns 1 if optimizer.kind or a group names this kind of optimizer. */
int ad_recipe_uses(const ad_recipe *recipe, ad_optimizer_kind kind);
/* Writes the options of all groups as ad_optimizer_create_groups takes them. If `dtype` is not 0, it is that of all
 * parameters, and whatever dtype an optimizer computes in by the recipe, it computes in that of its parameters. */
void ad_recipe_optimizers(const ad_recipe *recipe, ad_dtype dtype, ad_optimizer_options options[AD_GROUPS_MAX]);
/* Writes the learning rates that all groups have in a step. AD_INVALID as ad_schedule_at. */
AD_CHECKED ad_status ad_recipe_rates(const ad_recipe *recipe, int64_t step, double rates[AD_GROUPS_MAX]);

#endif
