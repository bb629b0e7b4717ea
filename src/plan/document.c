/* A plan as the JSON document that users and scripts rely on. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "plan/plan.h"

/* What every rank reduces, in launch order. */
typedef struct ad_reductions {
  ad_reduction_plan *list;
  size_t count;
} ad_reductions;

static ad_status list_reductions(const ad_reducer *reducer, ad_reductions *out) {
  ad_reductions reductions = {.count = ad_reducer_plan_count(reducer)};
  AD_TRY(ad_new(reductions.count, &reductions.list));
  for (size_t i = 0; i < reductions.count; i++) reductions.list[i] = ad_reducer_plan(reducer, i);
  *out = reductions;
  return AD_OK;
}

static json_t *step_document(const ad_reduction_plan *plan) {
  char axes[80];
  return json_pack("{s:s, s:s, s:I, s:s, s:I, s:i, s:s}", "op", ad_move_name(plan->move), "axes",
                   ad_axes_print(plan->axes, axes, sizeof axes), "group_size", (json_int_t)plan->group_size, "dtype",
                   ad_dtype_name(plan->dtype), "bytes", (json_int_t)plan->bytes, "bucket", plan->bucket, "when",
                   "last_microbatch");
}

static int holds_param(const ad_reduction_plan *plan, size_t param) {
  for (size_t i = 0; i < plan->param_count; i++)
    if (plan->params[i] == param) return 1;
  return 0;
}

/* The steps of one parameter's path; `bytes` is its own, uncut array. */
static json_t *path_document(ad_run *run, size_t param, const ad_reductions *reductions) {
  json_t *path = json_array();
  const ad_param_spec *spec = ad_run_param(run, param);
  for (size_t i = 0; i < reductions->count; i++) {
    ad_reduction_plan plan = reductions->list[i];
    if (!holds_param(&plan, param)) continue;
    plan.bytes = (size_t)ad_shape_numel(&spec->shape) * ad_dtype_size(plan.dtype);
    json_array_append_new(path, step_document(&plan));
  }
  return path;
}

static json_t *contract_document(const ad_contract *contract) {
  return json_pack("{s:s, s:s, s:s, s:s}", "param", ad_dtype_name(contract->param), "grad",
                   contract->raw ? "raw" : ad_dtype_name(contract->grad), "reduce", ad_dtype_name(contract->reduce),
                   "accumulate", ad_dtype_name(contract->accumulate));
}

static json_t *param_document(ad_run *run, size_t index, const ad_reductions *reductions) {
  const ad_param_spec *spec = ad_run_param(run, index);
  ad_layout gradient = ad_layout_dual(&spec->layout);
  char layout[160], storage[160], dual[160];
  return json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:o, s:o}", "name", spec->name, "numel",
                   (json_int_t)ad_shape_numel(&spec->shape), "mesh", ad_mesh_text(ad_run_mesh(run)), "layout",
                   ad_layout_print(&spec->layout, layout, sizeof layout), "storage",
                   ad_layout_print(&spec->storage, storage, sizeof storage), "gradient_layout",
                   ad_layout_print(&gradient, dual, sizeof dual), "contract", contract_document(&spec->contract),
                   "path", path_document(run, index, reductions));
}

static json_t *collective_document(ad_run *run, const ad_reduction_plan *plan) {
  json_t *document = step_document(plan), *params = json_array();
  for (size_t i = 0; i < plan->param_count; i++)
    json_array_append_new(params, json_string(ad_run_param(run, plan->params[i])->name));
  json_object_set_new(document, "params", params);
  return document;
}

static json_t *memory_document(const ad_plan_memory *memory, int64_t rank) {
  return json_pack("{s:I, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "rank", (json_int_t)rank, "node", 0, "params",
                   (json_int_t)memory->params, "gathered", (json_int_t)memory->gathered, "grads",
                   (json_int_t)memory->grads, "optimizer", (json_int_t)memory->optimizer, "buckets",
                   (json_int_t)memory->buckets, "activations", (json_int_t)memory->activations, "runtime",
                   (json_int_t)memory->runtime, "peak", (json_int_t)ad_plan_peak(memory));
}

/* What decides a rank's bytes: the rows of its microbatches. */
static uint64_t rows_key(const ad_recipe *recipe, const ad_layout *batch, int64_t rank) {
  uint64_t key = 1469598103934665603u;
  for (int64_t m = 0; m < recipe->train.microbatches; m++) {
    ad_span rows = ad_batch_rows(batch, rank, recipe->train.global_batch, recipe->train.microbatches, m);
    key = (key ^ (uint64_t)rows.count) * 1099511628211u;
  }
  return key;
}

enum { DISTINCT_MAX = 64, LISTED_MAX = 4096 };

/* Ranks that hold the same bytes, found once. */
typedef struct ad_distinct {
  uint64_t keys[DISTINCT_MAX];
  ad_plan_memory memory[DISTINCT_MAX];
  size_t count;
} ad_distinct;

static ad_status measure(const ad_recipe *recipe, int64_t rank, int64_t world, ad_plan_memory *out) {
  ad_comm *comm;
  ad_run *run;
  AD_TRY(ad_plan_act(recipe, rank, world, &comm, &run));
  *out = ad_plan_memory_of(run);
  ad_run_destroy(run);
  ad_comm_close(comm);
  return AD_OK;
}

static ad_status find_memory(const ad_recipe *recipe, const ad_layout *batch, int64_t rank, int64_t world,
                             ad_distinct *distinct, ad_plan_memory **out) {
  uint64_t key = rows_key(recipe, batch, rank);
  for (size_t i = 0; i < distinct->count; i++)
    if (distinct->keys[i] == key) return distinct->memory[i].ranks++, *out = &distinct->memory[i], AD_OK;
  if (distinct->count == DISTINCT_MAX)
    return ad_fail(AD_INVALID, "more than %d kinds of ranks: the batch is cut in too many different ways",
                   DISTINCT_MAX);
  AD_TRY(measure(recipe, rank, world, &distinct->memory[distinct->count]));
  distinct->keys[distinct->count] = key;
  *out = &distinct->memory[distinct->count++];
  return AD_OK;
}

/* Every rank of a small world; of a large one the first rank of each kind, with their number. */
static ad_status list_memory(const ad_recipe *recipe, const ad_layout *batch, int64_t world, json_t *list,
                             size_t *node_peak) {
  ad_distinct *distinct;
  AD_TRY(ad_new(1, &distinct));
  ad_status status = AD_OK;
  for (int64_t rank = 0; rank < world && !status; rank++) {
    ad_plan_memory *memory = NULL;
    status = find_memory(recipe, batch, rank, world, distinct, &memory);
    if (status) break;
    *node_peak += ad_plan_peak(memory);
    if (world <= LISTED_MAX) json_array_append_new(list, memory_document(memory, rank));
  }
  for (size_t i = 0; i < distinct->count && world > LISTED_MAX && !status; i++) {
    json_t *document = memory_document(&distinct->memory[i], distinct->memory[i].rank);
    json_object_set_new(document, "ranks", json_integer((json_int_t)distinct->memory[i].ranks));
    json_array_append_new(list, document);
  }
  ad_release(distinct);
  return status;
}

static ad_status fill(const ad_recipe *recipe, ad_run *run, int64_t world, json_t *document) {
  json_t *params = json_array(), *collectives = json_array(), *ranks = json_array();
  size_t node_peak = 0;
  ad_reductions reductions = {0};
  ad_status status = list_reductions(ad_run_reducer(run), &reductions);
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    json_array_append_new(params, param_document(run, i, &reductions));
  for (size_t i = 0; i < reductions.count; i++)
    json_array_append_new(collectives, collective_document(run, &reductions.list[i]));
  ad_release(reductions.list);
  if (!status) status = list_memory(recipe, ad_model_batch_layout(ad_run_model(run)), world, ranks, &node_peak);
  json_object_set_new(document, "recipe", json_string(recipe->name));
  json_object_set_new(document, "world", json_integer((json_int_t)world));
  json_object_set_new(document, "params", params);
  json_object_set_new(document, "collectives", collectives);
  json_object_set_new(document, "memory_per_rank", ranks);
  json_object_set_new(document, "memory_per_node", json_pack("[{s:i, s:I}]", "node", 0, "peak", (json_int_t)node_peak));
  return status;
}

ad_status ad_plan_document(const ad_recipe *recipe, json_t **out) {
  ad_mesh *mesh;
  ad_comm *comm;
  ad_run *run;
  AD_TRY(ad_recipe_mesh(recipe, &mesh));
  int64_t world = ad_mesh_size(mesh);
  ad_mesh_destroy(mesh);
  AD_TRY(ad_plan_act(recipe, 0, world, &comm, &run));
  json_t *document = json_object();
  ad_status status = fill(recipe, run, world, document);
  ad_run_destroy(run);
  ad_comm_close(comm);
  if (status)
    json_decref(document);
  else
    *out = document;
  return status;
}

ad_status ad_plan_json(const ad_recipe *recipe, char **out) {
  json_t *document;
  AD_TRY(ad_plan_document(recipe, &document));
  char *text = json_dumps(document, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the document of the plan");
  *out = text;
  return AD_OK;
}
