/* The key `shard.groups`: reads it and holds it against the other keys and the parameters. sharding.h has what it
 * means. */
#ifndef RECIPE_SHARD_GROUPS_H
#define RECIPE_SHARD_GROUPS_H
#include "recipe/entries.h"
#include "recipe/sharding.h"

extern const ad_entry_kind ad_shard_group_entries; /* entries are ad_recipe_shard_group */

/* Reads the list of groups into the recipe. Sets *good to 0 if it adds an error. */
AD_CHECKED ad_status ad_shard_groups_read(ad_reading *reading, const ad_node *node, int *good);
/* Adds errors about lists of `sync` that do not fit the microbatches. */
void ad_shard_groups_check_sync(ad_reading *reading);
/* Sets the `sync` of every group to a list with one entry for each microbatch, or to NULL if it is train.sync, which is
 * complete. `is_given`: 1 if the recipe gives train.sync; otherwise a group without `sync` has what its level means.
 * Adds errors about groups that differ from train.sync in a recipe with leaves. */
AD_CHECKED ad_status ad_shard_groups_complete_sync(ad_reading *reading, int is_given);
/* Adds errors about patterns that no parameter needs, and groups that give nothing. */
void ad_shard_groups_check(ad_reading *reading, const ad_program *program);

#endif
