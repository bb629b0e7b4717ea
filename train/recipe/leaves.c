/* Leaves of the batch (train.leaves). With leaves, a step consists of rounds instead of microbatches; reduce/deal.h
 * decides which leaf a rank computes in each round. */
#include "recipe/leaves.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "mesh/mesh.h"
#include "program/program.h"
#include "recipe/schema.h"
#include "recipe/sharding.h"
#include "reduce/deal.h"

/* ---- rounds, and which rank computes which leaf in a round ---- */

int64_t ad_recipe_parts(const ad_recipe *recipe) {
  return recipe->train.leaves ? recipe->train.leaves : recipe->train.microbatches;
}

int64_t ad_recipe_rounds(const ad_recipe *recipe) {
  return recipe->train.leaves ? recipe->train.microbatches * recipe->train.rounds_each : recipe->train.microbatches;
}

ad_sync ad_recipe_sync(const ad_recipe *recipe, size_t round) {
  size_t each = recipe->train.leaves ? (size_t)recipe->train.rounds_each : 1;
  return (round + 1) % each ? AD_SYNC_NONE : recipe->train.sync[round / each];
}

void ad_recipe_set_rounds(ad_recipe *recipe, int64_t positions) {
  int64_t slots = positions * recipe->train.microbatches;
  recipe->train.rounds_each = (recipe->train.leaves + slots - 1) / slots;
}

static int64_t positions_of(const ad_mesh *mesh) {
  return ad_mesh_axis_size(mesh, AD_DP_REPLICATE) * ad_mesh_axis_size(mesh, AD_DP_SHARD);
}

int64_t ad_recipe_usual_microbatches(const ad_recipe *recipe, const ad_mesh *mesh) {
  int64_t positions = positions_of(mesh);
  if (ad_recipe_highest_zero(recipe) < 2) return 1;
  return (recipe->train.leaves + positions - 1) / positions;
}

/* Fills `deal`, from which ad_leaf_of finds which rank computes which leaf. The deal borrows *sync, which the caller
 * releases. */
static ad_status deal_out(const ad_recipe *recipe, const ad_mesh *mesh, ad_leaf_deal *deal, ad_sync **sync) {
  int64_t rounds = ad_recipe_rounds(recipe);
  AD_TRY(ad_new((size_t)rounds, sync));
  for (int64_t i = 0; i < rounds; i++) (*sync)[i] = ad_recipe_sync(recipe, (size_t)i);
  *deal = (ad_leaf_deal){.leaves = recipe->train.leaves,
                         .replicas = ad_mesh_axis_size(mesh, AD_DP_REPLICATE),
                         .shards = ad_mesh_axis_size(mesh, AD_DP_SHARD),
                         .rounds = rounds,
                         .sync = *sync,
                         .scatters = ad_recipe_highest_zero(recipe) > 0 && recipe->train.scatters};
  return AD_OK;
}

/* Returns 1 if any data-parallel position computes a leaf in this round. */
static int is_computed(const ad_leaf_deal *deal, int64_t round) {
  for (int64_t i = 0; i < deal->replicas * deal->shards; i++)
    if (ad_leaf_of(deal, i / deal->shards, i % deal->shards, round) >= 0) return 1;
  return 0;
}

/* Fills in a leaf for each round in which this rank has none and some other rank has one: the first leaf of this rank
 * or, if it has no leaf at all, leaf 0. */
static void join_others(const ad_leaf_deal *deal, int64_t *leaves) {
  int64_t first = 0;
  for (int64_t i = deal->rounds; i-- > 0;)
    if (leaves[i] >= 0) first = leaves[i];
  for (int64_t i = 0; i < deal->rounds; i++)
    if (leaves[i] < 0 && is_computed(deal, i)) leaves[i] = first;
}

static ad_status list_on(const ad_recipe *recipe, const ad_mesh *mesh, int64_t rank, int joins, int64_t **out) {
  ad_leaf_deal deal;
  ad_sync *sync;
  int64_t replica = ad_mesh_position(mesh, rank, AD_DP_REPLICATE), shard = ad_mesh_position(mesh, rank, AD_DP_SHARD);
  AD_TRY(deal_out(recipe, mesh, &deal, &sync));
  ad_status status = ad_new((size_t)deal.rounds, out);
  for (int64_t i = 0; !status && i < deal.rounds; i++) (*out)[i] = ad_leaf_of(&deal, replica, shard, i);
  if (!status && joins) join_others(&deal, *out);
  ad_release(sync);
  return status;
}

static ad_status list(const ad_recipe *recipe, int64_t rank, int joins, int64_t **out) {
  ad_mesh *mesh;
  AD_TRY(ad_mesh_create(recipe->meshes[0].text, &mesh));
  ad_status status = list_on(recipe, mesh, rank, joins, out);
  ad_mesh_destroy(mesh);
  return status;
}

ad_status ad_recipe_list_leaves(const ad_recipe *recipe, int64_t rank, int64_t **out) {
  return list(recipe, rank, 0, out);
}

ad_status ad_recipe_list_passes(const ad_recipe *recipe, int64_t rank, int64_t **out) {
  return list(recipe, rank, ad_recipe_highest_zero(recipe) == 3, out);
}

/* ---- recipes that cannot have leaves: each function returns 1 if it complained ---- */

static const char key[] = "train.leaves";

/* Some programs need all microbatches on each rank. Returns in a few words why this one does, or NULL if it does
 * not. */
static const char *needs_all(const ad_program_kind *kind) {
  if (kind->choices.margin && !kind->sums_leaves) return "chooses by comparing numbers";
  if (kind->account.measured && !kind->sums_leaves) return "measures numbers in each step";
  if (kind->account.show) return "shows what it learned";
  if (kind->course.after_step && !kind->sums_leaves) return "changes states after each step";
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

/* Refuses meshes with pp or block above 1, and meshes in which dp_replicate and dp_shard are not the slowest axes, in
 * this order. */
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

/* Refuses a view of which no part lies on one data-parallel position. A text that is no view of this mesh is reported
 * elsewhere. */
static int refuses_view(const ad_key *of, const char *text, const ad_mesh *mesh, const ad_complaints *to) {
  ad_mesh *view;
  char *part = NULL;
  ad_status status = ad_key_view(mesh, text, &view);
  if (status == AD_INVALID) return 0;
  if (!status) {
    ad_mesh_destroy(view);
    status = ad_leaves_view(mesh, text, &part);
    ad_release(part);
  }
  if (status) ad_complain_of(to, of->path, status);
  return status != AD_OK;
}

static int refuses_views(const ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to) {
  int refused = 0;
  for (size_t i = 0; i < recipe->program->key_count; i++) {
    const ad_key *of = &recipe->program->keys[i];
    const char *text = of->kind == AD_KEY_VIEW ? *(char **)((char *)recipe->options + of->offset) : NULL;
    if (text) refused |= refuses_view(of, text, mesh, to);
  }
  return refused;
}

static int refuses_stages(const ad_recipe *recipe, const ad_complaints *to) {
  if (recipe->schedule.stages <= 1) return 0;
  ad_complain(to, key, "does not work with schedule.stages %lld; set schedule.stages to 0, or leave this key out",
              (long long)recipe->schedule.stages);
  return 1;
}

static int refuses_number(const ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to) {
  long long leaves = recipe->train.leaves, positions = positions_of(mesh);
  if (leaves >= positions) return 0;
  ad_complain(to, key,
              "must be at least the number of data-parallel ranks, which is %lld, but is %lld; set it to at least "
              "%lld, or change the mesh",
              positions, leaves, positions);
  return 1;
}

void ad_recipe_check_leaves(ad_recipe *recipe, const ad_mesh *mesh, const ad_complaints *to) {
  if (refuses_kind(recipe, to) || refuses_mesh(mesh, to) || refuses_stages(recipe, to)) return;
  if (refuses_views(recipe, mesh, to) || refuses_number(recipe, mesh, to)) return;
  ad_recipe_set_rounds(recipe, positions_of(mesh));
}
