/* A plan as the JSON document that users and scripts rely on. Its bytes of memory are in memory.c. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "layout/shown.h"
#include "plan/plan.h"

/* One collective of a step: a reduction of the reducer's, or a gather of parameters. */
typedef struct ad_planned {
  ad_reduction_plan plan;
  const char *when;
  int64_t times;   /* in a step */
  size_t gathered; /* a gather's own parameter; plan.params points here */
} ad_planned;

/* Everything that every rank calls: gathers of the forward pass, of the backward pass, reductions in launch order, then
 * what follows the update. */
typedef struct ad_collectives {
  ad_planned *list;
  size_t count;
} ad_collectives;

/* In which microbatches a reduction runs: a reduce_scatter wherever shards are made, the rest where all are. */
static ad_planned planned_reduction(const ad_recipe *recipe, ad_reduction_plan plan) {
  ad_planned planned = {.plan = plan};
  ad_sync least = plan.move == AD_MOVE_REDUCE_SCATTER ? AD_SYNC_SHARD : AD_SYNC_ALL;
  for (size_t m = 0; m < recipe->train.sync_count; m++) planned.times += recipe->train.sync[m] >= least;
  int always = planned.times > 1 && planned.times == (int64_t)recipe->train.sync_count;
  planned.when = always ? "every_microbatch" : "last_microbatch";
  return planned;
}

ad_axes ad_plan_gathered_axes(const ad_param_spec *spec) {
  ad_axes axes = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int cut = ad_type_is_cut(spec->storage.type[axis]) && !ad_type_is_cut(spec->layout.type[axis]);
    if (cut && ad_mesh_axis_size(spec->layout.mesh, (ad_axis)axis) > 1) axes |= AD_AXES(axis);
  }
  return axes;
}

static int64_t size_of_axes(const ad_mesh *mesh, ad_axes axes) {
  int64_t size = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis)) size *= ad_mesh_axis_size(mesh, (ad_axis)axis);
  return size;
}

static void add_gather(ad_run *run, size_t param, const char *when, int64_t times, ad_collectives *to) {
  const ad_param_spec *spec = ad_run_param(run, param);
  ad_axes axes = ad_plan_gathered_axes(spec);
  if (!axes) return;
  to->list[to->count++] =
      (ad_planned){.plan = {.bucket = ad_model_param(ad_run_model(run), param)->unit,
                            .move = AD_MOVE_ALL_GATHER,
                            .axes = axes,
                            .group_size = size_of_axes(spec->layout.mesh, axes),
                            .dtype = spec->contract.param,
                            .bytes = (size_t)ad_shape_numel(&spec->shape) * ad_dtype_size(spec->contract.param),
                            .param_count = 1},
                   .when = when,
                   .times = times,
                   .gathered = param};
}

static void list_gathers(ad_run *run, ad_collectives *to, int after_update) {
  const ad_recipe *recipe = ad_run_recipe(run);
  size_t count = ad_run_param_count(run);
  int releases = recipe->shard.zero == 3;
  if (releases == after_update) return;
  for (size_t i = 0; i < count && after_update; i++) add_gather(run, i, "step", 1, to);
  for (size_t i = 0; i < count && releases; i++) add_gather(run, i, "forward", recipe->train.microbatches, to);
  for (size_t i = count; i-- > 0 && releases;) add_gather(run, i, "backward", recipe->train.microbatches, to);
}

static ad_status list_collectives(ad_run *run, ad_collectives *out) {
  const ad_reducer *reducer = ad_run_reducer(run);
  size_t reductions = ad_reducer_plan_count(reducer);
  ad_collectives collectives = {0};
  AD_TRY(ad_new(reductions + 2 * ad_run_param_count(run), &collectives.list));
  list_gathers(run, &collectives, 0);
  for (size_t i = 0; i < reductions; i++)
    collectives.list[collectives.count++] = planned_reduction(ad_run_recipe(run), ad_reducer_plan(reducer, i));
  list_gathers(run, &collectives, 1);
  for (size_t i = 0; i < collectives.count; i++)
    if (!collectives.list[i].plan.params) collectives.list[i].plan.params = &collectives.list[i].gathered;
  *out = collectives;
  return AD_OK;
}

static json_t *step_document(const ad_planned *planned, size_t bytes) {
  char axes[80];
  const ad_reduction_plan *plan = &planned->plan;
  return json_pack("{s:s, s:s, s:I, s:s, s:I, s:i, s:s, s:I}", "op", ad_move_name(plan->move), "axes",
                   ad_axes_print(plan->axes, axes, sizeof axes), "group_size", (json_int_t)plan->group_size, "dtype",
                   ad_dtype_name(plan->dtype), "bytes", (json_int_t)bytes, "bucket", plan->bucket, "when",
                   planned->when, "times", (json_int_t)planned->times);
}

static int holds_param(const ad_reduction_plan *plan, size_t param) {
  for (size_t i = 0; i < plan->param_count; i++)
    if (plan->params[i] == param) return 1;
  return 0;
}

/* The steps of one parameter's path; `bytes` is its own, uncut array. */
static json_t *path_document(ad_run *run, size_t param, const ad_collectives *collectives) {
  json_t *path = json_array();
  const ad_param_spec *spec = ad_run_param(run, param);
  for (size_t i = 0; i < collectives->count; i++) {
    const ad_planned *planned = &collectives->list[i];
    if (!holds_param(&planned->plan, param)) continue;
    size_t bytes = (size_t)ad_shape_numel(&spec->shape) * ad_dtype_size(planned->plan.dtype);
    json_array_append_new(path, step_document(planned, bytes));
  }
  return path;
}

static json_t *contract_document(const ad_contract *contract) {
  return json_pack("{s:s, s:s, s:s, s:s}", "param", ad_dtype_name(contract->param), "grad",
                   contract->raw ? "raw" : ad_dtype_name(contract->grad), "reduce", ad_dtype_name(contract->reduce),
                   "accumulate", ad_dtype_name(contract->accumulate));
}

static json_t *param_document(ad_run *run, size_t index, const ad_collectives *collectives) {
  const ad_param_spec *spec = ad_run_param(run, index);
  ad_layout gradient = ad_layout_dual(&spec->layout);
  char layout[160], storage[160], dual[160];
  return json_pack("{s:s, s:I, s:s, s:s, s:s, s:s, s:o, s:o}", "name", spec->name, "numel",
                   (json_int_t)ad_shape_numel(&spec->shape), "mesh", ad_mesh_text(ad_run_mesh(run)), "layout",
                   ad_layout_shown(&spec->layout, layout, sizeof layout), "storage",
                   ad_layout_shown(&spec->storage, storage, sizeof storage), "gradient_layout",
                   ad_layout_shown(&gradient, dual, sizeof dual), "contract", contract_document(&spec->contract),
                   "path", path_document(run, index, collectives));
}

static json_t *collective_document(ad_run *run, const ad_planned *planned) {
  const ad_reduction_plan *plan = &planned->plan;
  json_t *document = step_document(planned, plan->bytes), *params = json_array();
  for (size_t i = 0; i < plan->param_count; i++)
    json_array_append_new(params, json_string(ad_run_param(run, plan->params[i])->name));
  json_object_set_new(document, "params", params);
  return document;
}

static ad_status fill(const ad_recipe *recipe, ad_run *run, const ad_plan_world *world, json_t *document) {
  json_t *params = json_array(), *collectives = json_array();
  ad_collectives listed = {0};
  ad_status status = list_collectives(run, &listed);
  for (size_t i = 0; i < ad_run_param_count(run); i++) json_array_append_new(params, param_document(run, i, &listed));
  for (size_t i = 0; i < listed.count; i++)
    json_array_append_new(collectives, collective_document(run, &listed.list[i]));
  ad_release(listed.list);
  json_object_set_new(document, "recipe", json_string(recipe->name));
  json_object_set_new(document, "world", json_integer((json_int_t)world->ranks));
  json_object_set_new(document, "params", params);
  json_object_set_new(document, "collectives", collectives);
  return status ? status : ad_plan_add_memory(recipe, world, run, document);
}

ad_status ad_plan_document(const ad_recipe *recipe, const ad_plan_options *options, json_t **out) {
  ad_plan_world world;
  ad_comm *comm;
  ad_run *run;
  AD_TRY(ad_plan_world_of(recipe, options, &world));
  AD_TRY(ad_plan_act(recipe, 0, &world, &comm, &run));
  json_t *document = json_object();
  ad_status status = fill(recipe, run, &world, document);
  ad_run_destroy(run);
  ad_comm_close(comm);
  if (status)
    json_decref(document);
  else
    *out = document;
  return status;
}

ad_status ad_plan_json(const ad_recipe *recipe, const ad_plan_options *options, char **out) {
  AD_NEED(recipe, out);
  json_t *document;
  AD_TRY(ad_plan_document(recipe, options, &document));
  char *text = json_dumps(document, JSON_INDENT(1) | JSON_PRESERVE_ORDER);
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the document of the plan");
  *out = text;
  return AD_OK;
}
