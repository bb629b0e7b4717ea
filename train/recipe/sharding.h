/* How a recipe shards each parameter: the keys of `shard`, and what an entry of shard.groups gives in their place. Group 0
 * has the parameters that no pattern matches, and group i + 1 those of which entry i of shard.groups is the first that
 * matches. */
#ifndef RECIPE_SHARDING_H
#define RECIPE_SHARDING_H
#include "addend/recipe.h"

/* Returns the number of a parameter's group, and how the parameters of a group are sharded. */
size_t ad_recipe_shard_group_of(const ad_recipe *recipe, const char *param);
ad_recipe_sharding ad_recipe_sharding_of_group(const ad_recipe *recipe, size_t group);
/* Returns the highest ZeRO level of the recipe: shard.zero or that of a group. */
int64_t ad_recipe_highest_zero(const ad_recipe *recipe);
/* Returns what train.sync means for a microbatch before the last at this ZeRO level, if it is left out. */
ad_sync ad_usual_sync(int64_t zero);
/* Like ad_recipe_sync, for the parameters of a group. */
ad_sync ad_recipe_sync_of_group(const ad_recipe *recipe, size_t group, size_t round);

#endif
