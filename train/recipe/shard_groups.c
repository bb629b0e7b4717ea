/* The key `shard.groups`: reads it, holds it against the other keys and the parameters, and completes what its entries
 * leave out. print.c prints it. */
#include "recipe/shard_groups.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "program/program.h"

#define AT(field) offsetof(ad_recipe_shard_group, field)

enum { MATCH, ZERO, SYNC, BUCKET, WINDOW, PREFETCH, KEYS };

static const ad_key keys[KEYS] = {
    [MATCH] = {"match", AD_KEY_TEXT, .offset = AT(pattern),
               .help = "a pattern of parameter names, such as \"*.experts.*\""},
    [ZERO] = {"zero", AD_KEY_INTEGER, .offset = AT(zero), .least = 0, .most = 3},
    [SYNC] = {"sync", AD_KEY_SYNC, .list = 1, .offset = AT(sync), .second = AT(sync_count),
              .help = "none, shard or all for all microbatches before the last, or one for each microbatch"},
    [BUCKET] = {"bucket_mib", AD_KEY_NUMBER, .offset = AT(bucket_mib), .least = 0, .most = 65536, .open_least = 1},
    [WINDOW] = {"window", AD_KEY_INTEGER, .offset = AT(window), .least = 0, .most = 4096},
    [PREFETCH] = {"prefetch", AD_KEY_INTEGER, .offset = AT(prefetch), .least = 0, .most = 4096}};
static const int flags[KEYS] = {[ZERO] = AD_SHARDS_ZERO,
                                [SYNC] = AD_SHARDS_SYNC,
                                [BUCKET] = AD_SHARDS_BUCKET,
                                [WINDOW] = AD_SHARDS_WINDOW,
                                [PREFETCH] = AD_SHARDS_PREFETCH};

const ad_entry_kind ad_shard_group_entries = {.path = "shard.groups",
                                              .keys = keys,
                                              .flags = flags,
                                              .key_count = KEYS,
                                              .size = sizeof(ad_recipe_shard_group),
                                              .most = AD_GROUPS_MAX - 1,
                                              .example = "{match: \"*.experts.*\", zero: 1}",
                                              .names = "match, zero, sync, bucket_mib, window and prefetch"};

static ad_patterns patterns_of(const ad_recipe *recipe) {
  return (ad_patterns){recipe->shard.groups, sizeof *recipe->shard.groups, recipe->shard.group_count};
}

/* ---- reading and checking ---- */

ad_status ad_shard_groups_read(ad_reading *r, const ad_node *node, int *good) {
  void *list = NULL;
  ad_status status = ad_entries_read(r, &ad_shard_group_entries, node, &list, &r->recipe->shard.group_count, good);
  r->recipe->shard.groups = list;
  return status;
}

#define WRONG(r, index, ...)                                                                                   \
  do {                                                                                                         \
    char path[AD_ENTRY_PATH_SIZE];                                                                             \
    ad_entry_path(&ad_shard_group_entries, index, "sync", path);                                               \
    ad_recipe_errors_add(&(r)->errors, ad_reading_element_place(r, "shard.groups", index), path, __VA_ARGS__); \
  } while (0)

/* Returns 1 if a microbatch before the last is reduced completely. */
static int is_all_early(const ad_recipe_shard_group *group, int64_t microbatches) {
  if (group->sync_count == 1) return group->sync[0] == AD_SYNC_ALL && microbatches > 1;
  for (size_t m = 0; m + 1 < group->sync_count; m++)
    if (group->sync[m] == AD_SYNC_ALL) return 1;
  return 0;
}

static void check_sync(ad_reading *r, size_t index) {
  const ad_recipe_shard_group *group = &r->recipe->shard.groups[index];
  long long microbatches = r->recipe->train.microbatches;
  const char *schedule = r->recipe->schedule.kind;
  size_t count = group->sync_count;
  if (count > 1 && count != (size_t)microbatches)
    WRONG(r, index,
          "has %zu entries, but must have one for each microbatch, and train.microbatches is %lld; write one word for "
          "all microbatches before the last",
          count, microbatches);
  else if (count > 1 && group->sync[count - 1] != AD_SYNC_ALL)
    WRONG(r, index, "must end in 'all', but ends in '%s'", ad_sync_names[group->sync[count - 1]]);
  else if (schedule && !strcmp(schedule, "zb") && is_all_early(group, microbatches))
    WRONG(r, index,
          "has 'all' before the last microbatch, which schedule.kind zb does not allow, because it computes gradients "
          "of weights after their microbatch has ended; use 'shard' or 'none' there, or schedule.kind 1f1b or "
          "interleaved");
}

void ad_shard_groups_check_sync(ad_reading *r) {
  for (size_t i = 0; i < r->recipe->shard.group_count; i++)
    if (r->recipe->shard.groups[i].sync_count) check_sync(r, i);
}

/* Gives the group a list with one entry for each microbatch: `word`, and `all` for the last. */
static ad_status spread(ad_recipe_shard_group *group, ad_sync word, size_t microbatches) {
  ad_sync *list;
  AD_TRY(ad_new(microbatches, &list));
  for (size_t m = 0; m < microbatches; m++) list[m] = m + 1 < microbatches ? word : AD_SYNC_ALL;
  ad_release(group->sync);
  group->sync = list;
  group->sync_count = microbatches;
  return AD_OK;
}

static int is_same(const ad_recipe *recipe, const ad_recipe_shard_group *group) {
  size_t count = recipe->train.sync_count;
  return group->sync_count == count && !memcmp(group->sync, recipe->train.sync, count * sizeof *group->sync);
}

static ad_status complete_sync(ad_reading *r, size_t index, int is_given) {
  ad_recipe *recipe = r->recipe;
  ad_recipe_shard_group *group = &recipe->shard.groups[index];
  size_t microbatches = (size_t)recipe->train.microbatches;
  int is_own = group->sync_count > 0;
  if (!is_own && (is_given || recipe->train.leaves)) return AD_OK;
  ad_sync word = is_own ? group->sync[0] : ad_usual_sync(ad_recipe_sharding_of_group(recipe, index + 1).zero);
  if (group->sync_count <= 1) AD_TRY(spread(group, word, microbatches));
  if (!is_own && !is_same(recipe, group)) group->gives |= AD_SHARDS_SYNC;
  if (recipe->train.leaves && !is_same(recipe, group))
    WRONG(r, index,
          "differs from train.sync, which does not work with train.leaves: which leaf a rank computes follows from "
          "train.sync, for all parameters together; leave this key out, or set train.sync");
  return AD_OK;
}

ad_status ad_shard_groups_complete_sync(ad_reading *r, int is_given) {
  for (size_t i = 0; i < r->recipe->shard.group_count; i++) AD_TRY(complete_sync(r, i, is_given));
  return AD_OK;
}

void ad_shard_groups_check(ad_reading *r, const ad_program *program) {
  ad_patterns patterns = patterns_of(r->recipe);
  if (!patterns.count) return;
  ad_patterns_check(r, program, patterns, "shard.groups", "match");
  ad_entries_check_gives(r, program, &ad_shard_group_entries, patterns, "zero, sync, bucket_mib, window or prefetch");
}
