/* How a recipe shards each parameter. */
#include "recipe/sharding.h"

#include "recipe/patterns.h"

size_t ad_recipe_shard_group_of(const ad_recipe *recipe, const char *param) {
  ad_patterns patterns = {recipe->shard.groups, sizeof *recipe->shard.groups, recipe->shard.group_count};
  size_t first = ad_pattern_first(patterns, param);
  return first < recipe->shard.group_count ? first + 1 : 0;
}

ad_recipe_sharding ad_recipe_sharding_of_group(const ad_recipe *recipe, size_t group) {
  ad_recipe_sharding of = {.zero = recipe->shard.zero,
                           .bucket_mib = recipe->shard.bucket_mib,
                           .window = recipe->shard.window,
                           .prefetch = recipe->shard.prefetch,
                           .sync = recipe->train.sync};
  const ad_recipe_shard_group *own = group ? &recipe->shard.groups[group - 1] : NULL;
  if (!own) return of;
  if (own->gives & AD_SHARDS_ZERO) of.zero = own->zero;
  if (own->gives & AD_SHARDS_BUCKET) of.bucket_mib = own->bucket_mib;
  if (own->gives & AD_SHARDS_WINDOW) of.window = own->window;
  if (own->gives & AD_SHARDS_PREFETCH) of.prefetch = own->prefetch;
  if (own->gives & AD_SHARDS_SYNC && own->sync) of.sync = own->sync;
  return of;
}

ad_recipe_sharding ad_recipe_shard_of(const ad_recipe *recipe, const char *param) {
  return ad_recipe_sharding_of_group(recipe, ad_recipe_shard_group_of(recipe, param));
}

int64_t ad_recipe_highest_zero(const ad_recipe *recipe) {
  int64_t highest = recipe->shard.zero;
  for (size_t g = 1; g <= recipe->shard.group_count; g++) {
    int64_t zero = ad_recipe_sharding_of_group(recipe, g).zero;
    if (zero > highest) highest = zero;
  }
  return highest;
}

ad_sync ad_usual_sync(int64_t zero) { return zero >= 2 ? AD_SYNC_SHARD : AD_SYNC_NONE; }

ad_sync ad_recipe_sync_of_group(const ad_recipe *recipe, size_t group, size_t round) {
  size_t each = recipe->train.leaves ? (size_t)recipe->train.rounds_each : 1;
  return (round + 1) % each ? AD_SYNC_NONE : ad_recipe_sharding_of_group(recipe, group).sync[round / each];
}
