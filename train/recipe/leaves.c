/* Leaves of the batch (train.leaves). A step's microbatches become rounds, and reduce/deal.h says which leaf a rank
 * computes in each. */
#include "recipe/leaves.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "kernels/nodes.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "recipe/schema.h"
#include "reduce/deal.h"

/* ---- rounds, and who computes which leaf in them ---- */

int64_t ad_recipe_parts(const ad_recipe *recipe) {
  return recipe->train.leaves ? recipe->train.leaves : recipe->train.microbatches;
}

int64_t ad_recipe_rounds(const ad_recipe *recipe) {
  return recipe->train.leaves ? recipe->train.microbatches * recipe->train.rounds_each : recipe->train.microbatches;
}

ad_sync ad_recipe_sync(const ad_recipe *recipe, size_t round) {
  size_t each = recipe->train.leaves ? (size_t)recipe->train.rounds_each : 1, m = round / each;
  if ((round + 1) % each) return AD_SYNC_NONE;
  if (recipe->train.sync_count) return recipe->train.sync[m];
  return (int64_t)m + 1 < recipe->train.microbatches ? AD_SYNC_NONE : AD_SYNC_ALL;  // while the recipe is checked
}

void ad_recipe_set_rounds(ad_recipe *recipe, int64_t positions) {
  int64_t slots = positions * recipe->train.microbatches;
  recipe->train.rounds_each = (recipe->train.leaves + slots - 1) / slots;
}

/* Fills `out` with the leaf of each round. */
static ad_status deal(const ad_recipe *recipe, const ad_mesh *mesh, int64_t rank, int64_t *out) {
  int64_t rounds = ad_recipe_rounds(recipe);
  ad_sync *sync;
  AD_TRY(ad_new((size_t)rounds, &sync));
  for (int64_t i = 0; i < rounds; i++) sync[i] = ad_recipe_sync(recipe, (size_t)i);
  ad_leaf_deal of = {.leaves = recipe->train.leaves,
                     .replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE),
                     .shards = ad_mesh_axis_size(mesh, AD_DP_SHARD),
                     .rounds = rounds,
                     .sync = sync,
                     .scatters = recipe->shard.zero >= 2};
  int64_t replica = ad_mesh_position(mesh, rank, AD_DP_REPLICATE), shard = ad_mesh_position(mesh, rank, AD_DP_SHARD);
  for (int64_t i = 0; i < rounds; i++) out[i] = ad_leaf_of(&of, replica, shard, i);
  ad_release(sync);
  return AD_OK;
}

ad_status ad_recipe_list_leaves(const ad_recipe *recipe, int64_t rank, int64_t **out) {
  ad_mesh *mesh;
  int64_t *list;
  AD_TRY(ad_mesh_create(recipe->meshes[0].text, &mesh));
  ad_status status = ad_new((size_t)ad_recipe_rounds(recipe), &list);
  if (!status) {
    status = deal(recipe, mesh, rank, list);
    if (status)
      ad_release(list);
    else
      *out = list;
  }
  ad_mesh_destroy(mesh);
  return status;
}

/* ---- which recipes cannot have leaves: each check returns 1 if it complained ---- */

static const char key[] = "train.leaves";

/* Returns what the program does, in a few words, that needs all microbatches on each rank; NULL if it does nothing of
 * the kind. */
static const char *needs_all(const ad_program_kind *kind) {
  if (kind->choices.margin) return "chooses by comparing numbers";
  if (kind->account.measured) return "measures numbers in each step";
  if (kind->account.show) return "shows what it learned";
  if (kind->course.after_step) return "changes states after each step";
  return kind->course.pretraining ? "has a training before its own" : NULL;
}

static int refuses_kind(const ad_recipe *recipe, const ad_complaints *to) {
  const ad_program_kind *kind = recipe->program;
  const char *needs = needs_all(kind);
  size_t modules = ad_schema_mesh_count(kind);
  if (modules > 1)
    ad_complain(to, key, "does not work with model.kind %s, which has %zu modules; leave this key out", kind->name,
                modules);
  else if (needs)
    ad_complain(
        to, key,
        "does not work with model.kind %s, which %s, and so needs all microbatches on each rank; leave this key "
        "out",
        kind->name, needs);
  return modules > 1 || needs;
}

/* Refuses meshes whose data-parallel positions are not the slowest axes, replicas before shards. */
static int refuses_mesh(const ad_mesh *mesh, const ad_complaints *to) {
  ad_mesh *slice;
  const ad_axis others[] = {AD_PP, AD_BLOCK};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    int64_t size = ad_mesh_axis_size(mesh, others[i]);
    if (size > 1)
      ad_complain(to, key, "does not work with %s=%lld in the mesh; make it %s=1, or leave this key out",
                  ad_axis_name(others[i]), (long long)size, ad_axis_name(others[i]));
    if (size > 1) return 1;
  }
  int64_t replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE), shards = ad_mesh_axis_size(mesh, AD_DP_SHARD);
  ad_status status = ad_mesh_create_slice(mesh, ad_mesh_first_rank(mesh), &slice);
  if (status) {
    ad_complain_of(to, key, status);
    return 1;
  }
  ad_mesh_destroy(slice);
  if (replicas == 1 || shards == 1 || ad_mesh_stride(mesh, AD_DP_REPLICATE) > ad_mesh_stride(mesh, AD_DP_SHARD))
    return 0;
  ad_complain(to, key, "needs dp_replicate before dp_shard in the mesh, which is \"%s\"", ad_mesh_text(mesh));
  return 1;
}

static int refuses_keys(const ad_recipe *recipe, const ad_complaints *to) {
  size_t early = 0;
  while (early + 1 < recipe->train.sync_count && recipe->train.sync[early] == AD_SYNC_NONE) early++;
  if (recipe->shard.zero > 1)
    ad_complain(to, key, "does not work with shard.zero %lld; set shard.zero to 0 or 1, or leave this key out",
                (long long)recipe->shard.zero);
  else if (early + 1 < recipe->train.sync_count)
    ad_complain(to, key,
                "does not work with '%s' before the last microbatch in train.sync; use 'none' there, or leave this key "
                "out",
                ad_sync_names[recipe->train.sync[early]]);
  else if (recipe->schedule.stages > 1)
    ad_complain(to, key, "does not work with schedule.stages %lld; set schedule.stages to 0, or leave this key out",
                (long long)recipe->schedule.stages);
  else
    return 0;
  return 1;
}

/* Returns 1 if the sums over ranks (law 10), of which each has a floor cut of the leaves, are those of the tree over
 * leaves: with ZeRO 0 one over all positions; with ZeRO 1 one over the shards of each replica, then one over replicas.
 * Neither of the first two implies the other: on 3 replicas of 5 shards, 15 leaves fail the second, on 2 of 3, 8 leaves
 * fail the first. Where both hold, so does the third. */
static int is_summed_alike(int64_t replicas, int64_t shards, int64_t leaves) {
  int64_t starts[AD_MICROBATCHES_MAX + 1] = {0}, positions = replicas * shards;
  if (positions > leaves) return 0;
  for (int64_t i = 0; i < positions; i++) {
    ad_span own = ad_cut(leaves, i / shards, replicas);
    starts[i] = own.first + ad_cut(own.count, i % shards, shards).first;
  }
  starts[positions] = leaves;
  for (int64_t i = 0; i < positions; i += shards)
    if (!ad_nodes_follow_members(starts + i, (size_t)shards, leaves)) return 0;
  return ad_nodes_follow_members(starts, (size_t)positions, leaves);
}

/* Writes "12 or 24": the nearest numbers of leaves below and above that would do, nothing if none would. Returns
 * buffer. */
static const char *other_leaves(int64_t replicas, int64_t shards, int64_t leaves, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  int64_t below = leaves - 1, above = leaves + 1;
  while (below > 0 && !is_summed_alike(replicas, shards, below)) below--;
  while (above <= AD_MICROBATCHES_MAX && !is_summed_alike(replicas, shards, above)) above++;
  if (below > 0) ad_text_add(&text, "%lld", (long long)below);
  if (above <= AD_MICROBATCHES_MAX) ad_text_add(&text, "%s%lld", below > 0 ? " or " : "", (long long)above);
  return buffer;
}

static int refuses_number(const ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to) {
  char others[64];
  int64_t replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE), shards = ad_mesh_axis_size(mesh, AD_DP_SHARD);
  long long leaves = recipe->train.leaves, positions = replicas * shards;
  if (is_summed_alike(replicas, shards, leaves)) return 0;
  if (!*other_leaves(replicas, shards, leaves, others, sizeof others))
    ad_complain(to, key,
                "does not work with dp_replicate=%lld dp_shard=%lld, whose ranks' sums are not those of the tree over "
                "leaves, whatever their number up to %d; change the mesh, or leave this key out",
                (long long)replicas, (long long)shards, AD_MICROBATCHES_MAX);
  else if (leaves < positions)
    ad_complain(to, key,
                "must be at least the number of data-parallel ranks, which is %lld, but is %lld; set it to %s, or "
                "change the mesh",
                positions, leaves, others);
  else
    ad_complain(to, key,
                "is %lld, but with dp_replicate=%lld dp_shard=%lld the ranks' sums are not those of the tree over "
                "leaves; set it to %s, or change the mesh",
                leaves, (long long)replicas, (long long)shards, others);
  return 1;
}

void ad_recipe_check_leaves(ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to) {
  if (refuses_kind(recipe, to) || refuses_mesh(mesh, to) || refuses_keys(recipe, to)) return;
  if (refuses_number(recipe, mesh, to)) return;
  ad_recipe_set_rounds(recipe, ad_mesh_axis_size(mesh, AD_DP_REPLICATE) * ad_mesh_axis_size(mesh, AD_DP_SHARD));
}
