/* The memory of every rank and node in a plan. Ranks of one kind hold the same, so that one of each is acted. */
#include "base/error.h"
#include "base/memory.h"
#include "plan/plan.h"

enum { DISTINCT_MAX = 256, LISTED_MAX = 4096 };

/* ---- which ranks hold the same ---- */

static uint64_t mix(uint64_t key, int64_t value) { return (key ^ (uint64_t)value) * 1099511628211u; }

/* The dimensions that storage cuts, each size once. */
typedef struct ad_cut_sizes {
  int64_t sizes[DISTINCT_MAX];
  int count;
} ad_cut_sizes;

static void find_cut_sizes(ad_run *run, ad_cut_sizes *out) {
  *out = (ad_cut_sizes){.count = 0};
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_param_spec *spec = ad_run_param(run, i);
    int known = !ad_plan_gathered_axes(spec), at = 0;
    for (; at < out->count && !known; at++) known = out->sizes[at] == spec->shape.dim[0];
    if (!known && out->count < DISTINCT_MAX) out->sizes[out->count++] = spec->shape.dim[0];
  }
}

/* The first of the replicas writes them into checkpoints. */
static uint64_t mix_replicas(uint64_t key, const ad_mesh *mesh, int64_t rank) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) key = mix(key, ad_mesh_position(mesh, rank, (ad_axis)axis) == 0);
  return key;
}

/* Copies are shared where all that compute with them are on one node. */
static uint64_t mix_node(uint64_t key, const ad_mesh *mesh, const ad_plan_world *world, int64_t rank) {
  ad_group group = ad_mesh_group(mesh, AD_AXES_DP, rank);
  int64_t first = ad_group_rank(&group, 0), last = ad_group_rank(&group, ad_group_size(&group) - 1);
  return mix(key, first / world->ranks_per_node == last / world->ranks_per_node);
}

/* What decides a rank's bytes: the rows of its microbatches and of its shards. */
static uint64_t rank_key(const ad_recipe *recipe, const ad_layout *batch, const ad_cut_sizes *cut,
                         const ad_plan_world *world, int64_t rank) {
  uint64_t key = mix_node(1469598103934665603u, batch->mesh, world, rank);
  int64_t position = ad_mesh_position(batch->mesh, rank, AD_DP_SHARD);
  int64_t shards = ad_mesh_axis_size(batch->mesh, AD_DP_SHARD);
  for (int i = 0; i < cut->count; i++) key = mix(key, ad_cut(cut->sizes[i], position, shards).count);
  for (int64_t m = 0; m < recipe->train.microbatches; m++) {
    ad_span rows = ad_batch_rows(batch, rank, recipe->train.global_batch, recipe->train.microbatches, m);
    key = mix(key, rows.count);
  }
  return recipe->checkpoint.every ? mix_replicas(key, batch->mesh, rank) : key;
}

/* Ranks that hold the same bytes, found once. */
typedef struct ad_distinct {
  uint64_t keys[DISTINCT_MAX];
  ad_plan_memory memory[DISTINCT_MAX];
  size_t count;
} ad_distinct;

static ad_status act(const ad_recipe *recipe, int64_t rank, const ad_plan_world *world, ad_plan_memory *out) {
  ad_comm *comm;
  ad_run *run;
  AD_TRY(ad_plan_act(recipe, rank, world, &comm, &run));
  ad_status status = ad_plan_memory_of(run, out);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return status;
}

static ad_status find_memory(const ad_recipe *recipe, int64_t rank, uint64_t key, const ad_plan_world *world,
                             ad_distinct *distinct, ad_plan_memory **out) {
  for (size_t i = 0; i < distinct->count; i++)
    if (distinct->keys[i] == key) return distinct->memory[i].ranks++, *out = &distinct->memory[i], AD_OK;
  if (distinct->count == DISTINCT_MAX)
    return ad_fail(AD_INVALID, "more than %d kinds of ranks: the batch is cut in too many different ways",
                   DISTINCT_MAX);
  AD_TRY(act(recipe, rank, world, &distinct->memory[distinct->count]));
  distinct->keys[distinct->count] = key;
  *out = &distinct->memory[distinct->count++];
  return AD_OK;
}

/* ---- the lists ---- */

static json_t *rank_document(const ad_plan_memory *memory, int64_t rank, const ad_plan_world *world) {
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)rank, "node",
                   (json_int_t)(rank / world->ranks_per_node), "params", (json_int_t)memory->params, "gathered",
                   (json_int_t)memory->gathered, "grads", (json_int_t)memory->grads, "optimizer",
                   (json_int_t)memory->optimizer, "buckets", (json_int_t)memory->buckets, "activations",
                   (json_int_t)memory->activations, "checkpoint", (json_int_t)memory->checkpoint, "runtime",
                   (json_int_t)memory->runtime, "peak", (json_int_t)ad_plan_peak(memory));
}

/* Both lists, with as much as is listed of them, and the node that is being added up. */
typedef struct ad_memory_lists {
  json_t *ranks, *nodes;
  size_t node_peak, most;
  int64_t most_node;
} ad_memory_lists;

static json_t *node_document(int64_t node, size_t peak) {
  return json_pack("{s:I, s:I}", "node", (json_int_t)node, "peak", (json_int_t)peak);
}

static void end_node(ad_memory_lists *lists, int64_t node, int listed) {
  if (listed) json_array_append_new(lists->nodes, node_document(node, lists->node_peak));
  if (lists->node_peak > lists->most) {
    lists->most = lists->node_peak;
    lists->most_node = node;
  }
  lists->node_peak = 0;
}

/* Of a large world the first rank of each kind, with their number, and the node that needs most, with that of all. */
static void list_kinds(const ad_distinct *distinct, const ad_plan_world *world, ad_memory_lists *lists) {
  for (size_t i = 0; i < distinct->count; i++) {
    json_t *document = rank_document(&distinct->memory[i], distinct->memory[i].rank, world);
    json_object_set_new(document, "ranks", json_integer((json_int_t)distinct->memory[i].ranks));
    json_array_append_new(lists->ranks, document);
  }
  json_t *document = node_document(lists->most_node, lists->most);
  int64_t nodes = (world->ranks + world->ranks_per_node - 1) / world->ranks_per_node;
  json_object_set_new(document, "nodes", json_integer((json_int_t)nodes));
  json_array_append_new(lists->nodes, document);
}

static ad_status list_memory(const ad_recipe *recipe, const ad_layout *batch, const ad_cut_sizes *cut,
                             const ad_plan_world *world, ad_memory_lists *lists) {
  ad_distinct *distinct;
  ad_status status = AD_OK;
  int listed = world->ranks <= LISTED_MAX;
  AD_TRY(ad_new(1, &distinct));
  for (int64_t rank = 0; rank < world->ranks && !status; rank++) {
    ad_plan_memory *memory = NULL;
    uint64_t key = rank_key(recipe, batch, cut, world, rank);
    status = find_memory(recipe, rank, key, world, distinct, &memory);
    if (status) break;
    lists->node_peak += ad_plan_peak(memory);
    if (listed) json_array_append_new(lists->ranks, rank_document(memory, rank, world));
    if ((rank + 1) % world->ranks_per_node == 0 || rank + 1 == world->ranks)
      end_node(lists, rank / world->ranks_per_node, listed);
  }
  if (!listed && !status) list_kinds(distinct, world, lists);
  ad_release(distinct);
  return status;
}

ad_status ad_plan_add_memory(const ad_recipe *recipe, const ad_plan_world *world, ad_run *run, json_t *document) {
  ad_memory_lists lists = {.ranks = json_array(), .nodes = json_array()};
  ad_cut_sizes cut;
  find_cut_sizes(run, &cut);
  ad_status status = list_memory(recipe, ad_model_batch_layout(ad_run_model(run)), &cut, world, &lists);
  json_object_set_new(document, "memory_per_rank", lists.ranks);
  json_object_set_new(document, "memory_per_node", lists.nodes);
  return status;
}
