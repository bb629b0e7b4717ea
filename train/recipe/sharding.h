/* How a recipe shards each parameter: the keys of `shard`, and what an entry of shard.groups gives in their place. Group 0
 * has the parameters that no pattern matches, and group i + 1 those of which entry i of shard.groups is the first that
 * matches. */
#ifndef RECIPE_SHARDING_H
#define RECIPE_SHARDING_H
#include "addend/recipe.h"

/* How parameters are sharded: the keys of `shard`, and `train.sync`. */
typedef struct ad_recipe_sharding {
  int64_t zero; /* ZeRO stage, 0 to 3 */
  double bucket_mib;
  /* number of bucket slots, as in ad_reducer_options; 0: so many that no bucket waits for another bucket's slot */
  int64_t window;
  /* number of units that are gathered before their use, as in ad_store_options */
  int64_t prefetch;
  const ad_sync *sync; /* for each microbatch, how far gradients are reduced after it; owned by the recipe */
} ad_recipe_sharding;

/* Returns how the recipe shards the parameter of this name, which is prefixed by its module's name if the program has
 * several: what the first entry of shard.groups that matches gives, and for the rest the recipe's own keys. */
ad_recipe_sharding ad_recipe_shard_of(const ad_recipe *recipe, const char *param);
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
