/* The plan as a JSON document for users and scripts. memory.c adds the bytes of memory. */
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "files/json.h"
#include "layout/shown.h"
#include "module/module.h"
#include "plan/schedule.h"
#include "plan/updates.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/leaves.h"
#include "recipe/sharding.h"
#include "reduce/plan.h"
#include "step/run.h"
#include "mesh/mesh.h"

/* One collective in a step: a reduction of gradients, a gather of parameters, or a move of matrices for an update. */
typedef struct ad_planned {
  ad_reduction_plan plan; /* its member `params` is not used */
  /* when the collective runs: "forward", "backward", "step", "update", "every_microbatch" or "last_microbatch" */
  const char *when;
  int64_t times;       /* how often the collective runs in a step */
  size_t first, count; /* the collective's parameters are entries [first, first + count) of ad_collectives' `params` */
  /* the collective as JSON, for a parameter of step_bytes bytes; shared by parameters of that size; owned; NULL before
   * the first parameter */
  json_t *step;
  size_t step_bytes;
} ad_planned;

/* All collectives that each rank of a pool calls, in this order: gathers of the forward pass, gathers of the backward
 * pass, reductions as they are launched, gathers after the update. */
typedef struct ad_collectives {
  ad_planned *list;
  size_t count, capacity;
  size_t *params; /* the parameters of all collectives, one collective after another; numbered as in ad_run_param_at */
  size_t param_count, param_capacity;
  size_t *of, *starts; /* parameter i is in the collectives list[of[starts[i]]] to list[of[starts[i + 1] - 1]] */
  /* the latest precision policy that was described; parameters with the same policy share its document */
  ad_precision_policy policy;
  json_t *policy_document;
  size_t pool; /* index of the pool whose ranks call these collectives */
} ad_collectives;

static void release_collectives(ad_collectives *collectives) {
  for (size_t i = 0; i < collectives->count; i++) json_decref(collectives->list[i].step);
  json_decref(collectives->policy_document);
  ad_release(collectives->list);
  ad_release(collectives->params);
  ad_release(collectives->of);
  ad_release(collectives->starts);
}

/* ---- listing the collectives ---- */

static ad_status make_room(size_t **array, size_t count, size_t *capacity) {
  if (count <= *capacity) return AD_OK;
  size_t wanted = 2 * count + 64;
  AD_TRY(ad_grow(array, *capacity, wanted));
  *capacity = wanted;
  return AD_OK;
}

/* Appends a collective. `params` are indices within a module, whose first parameter has the index `first` among all
 * parameters of the run. */
static ad_status add_planned(ad_collectives *to, ad_planned planned, const size_t *params, size_t count, size_t first) {
  if (to->count == to->capacity) {
    size_t capacity = 2 * to->capacity + 64;
    AD_TRY(ad_grow(&to->list, to->capacity, capacity));
    to->capacity = capacity;
  }
  AD_TRY(make_room(&to->params, to->param_count + count, &to->param_capacity));
  planned.first = to->param_count;
  planned.count = count;
  for (size_t i = 0; i < count; i++) to->params[to->param_count++] = first + params[i];
  to->list[to->count++] = planned;
  return AD_OK;
}

static const char *name_of(ad_run *run, size_t index, char *buffer, size_t size) {
  ad_run_param at = ad_run_param_at(run, index);
  return ad_program_param_name(ad_run_program(run), at.module, at.param, buffer, size);
}

/* Finds the microbatches in which a reduction runs: with sync `all` in every microbatch, with `shard` only an early
 * reduction, such as a reduce_scatter. `first` is the run's number of the reducer's first parameter. */
static ad_planned planned_reduction(ad_run *run, size_t first, ad_reduction_plan plan) {
  const ad_recipe *recipe = ad_run_recipe(run);
  ad_planned planned = {.plan = plan};
  ad_sync least = plan.early ? AD_SYNC_SHARD : AD_SYNC_ALL;
  const ad_sync *sync = ad_run_sharding(run, first + plan.params[0]).sync;
  for (size_t m = 0; m < recipe->train.sync_count; m++) planned.times += sync[m] >= least;
  int always = planned.times > 1 && planned.times == (int64_t)recipe->train.sync_count;
  planned.when = always ? "every_microbatch" : "last_microbatch";
  return planned;
}

/* Lists the reductions of all modules on this rank, module by module. */
static ad_status list_reductions(ad_run *run, ad_collectives *to) {
  const ad_program *program = ad_run_program(run);
  for (size_t m = 0, first = 0; m < ad_program_module_count(program); m++) {
    const ad_reducer *reducer = ad_run_module(run, m) ? ad_module_reducer(ad_run_module(run, m)) : NULL;
    for (size_t i = 0; reducer && i < ad_reducer_plan_count(reducer); i++) {
      ad_reduction_plan plan = ad_reducer_plan(reducer, i);
      AD_TRY(add_planned(to, planned_reduction(run, first, plan), plan.params, plan.param_count, first));
    }
    first += ad_program_module(program, m)->param_count;
  }
  return AD_OK;
}

/* Lists the moves of a stack of matrices that are updated as a whole: shards travel to the ranks that work on matrices,
 * and the results travel back. `first` is the index of the module's first parameter. */
static ad_status list_stack(ad_run *run, size_t module, const ad_stack *stack, size_t number, size_t first,
                            ad_collectives *to) {
  size_t *params;
  ad_planned planned = {.when = "update", .times = stack->rounds};
  AD_TRY(ad_new(stack->params, &params));
  ad_plan_stack_params(run, module, stack, params);
  ad_status status = AD_OK;
  for (int i = 0; !status && ad_plan_stack_move(run, stack, number, i, &planned.plan); i++)
    if (ad_move_moves_bytes(planned.plan.move)) status = add_planned(to, planned, params, stack->params, first);
  ad_release(params);
  return status;
}

static ad_status list_updates(ad_run *run, ad_collectives *to) {
  for (size_t m = 0, first = 0; m < ad_program_module_count(ad_run_program(run)); m++) {
    size_t count;
    const ad_stack *stacks = ad_plan_stacks(run, m, &count);
    for (size_t i = 0; i < count; i++) AD_TRY(list_stack(run, m, &stacks[i], i, first, to));
    first += ad_program_module(ad_run_program(run), m)->param_count;
  }
  return AD_OK;
}

/* Adds the gather of one parameter between two layouts, over the axes that shard the first and not the second. Its bytes
 * are those of the gathered parameter on this rank. */
static ad_status add_gather(ad_run *run, size_t param, const ad_layout *from, const ad_layout *gathered,
                            const char *when, int64_t times, ad_collectives *to) {
  ad_run_param at = ad_run_param_at(run, param);
  const ad_param_spec *spec = at.spec;
  ad_axes axes = ad_layout_sharded_axes(from) & ~ad_layout_sharded_axes(gathered) & ad_mesh_large(from->mesh);
  if (!at.held || !axes) return AD_OK;
  ad_shape local = ad_layout_local_shape(gathered, &spec->shape, ad_comm_rank(ad_run_comm(run)));
  ad_planned planned = {.plan = {.bucket = spec->unit,
                                 .move = AD_MOVE_ALL_GATHER,
                                 .axes = axes,
                                 .group_size = ad_mesh_ranks_over(spec->layout.mesh, axes),
                                 .dtype = spec->policy.param,
                                 .bytes = (size_t)ad_shape_numel(&local) * ad_dtype_size(spec->policy.param)},
                        .when = when,
                        .times = times};
  return add_planned(to, planned, &param, 1, 0);
}

/* Returns how often this rank's program runs in a step: once in each microbatch or, with leaves, in each round in which
 * some rank has a leaf. */
static int64_t count_passes(const ad_run *run) {
  int64_t count = 0;
  for (int64_t i = 0; i < ad_recipe_rounds(ad_run_recipe(run)); i++) count += ad_run_pass_of(run, (size_t)i) >= 0;
  return count;
}

/* Adds the gather of the stored parameter to its compute layout, if its copies are brought up to date as `after_update`
 * says: 1: after the update; 0, with ZeRO 3: at its uses. */
static ad_status add_use(ad_run *run, size_t param, const char *when, int64_t times, int after_update,
                         ad_collectives *to) {
  const ad_param_spec *spec = ad_run_param_at(run, param).spec;
  if ((ad_run_sharding(run, param).zero == 3) == after_update) return AD_OK;
  return add_gather(run, param, &spec->storage, &spec->layout, when, times, to);
}

/* Lists the gathers of values of which ranks updated parts (shard.outer_zero). */
static ad_status list_updated(ad_run *run, ad_collectives *to) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_param_spec *spec = ad_run_param_at(run, i).spec;
    AD_TRY(add_gather(run, i, ad_param_update(spec), &spec->storage, "step", 1, to));
  }
  return AD_OK;
}

/* Lists the gathers: after_update = 0: of parameters with ZeRO 3, before each use; 1: of the others, once after the
 * update. */
static ad_status list_gathers(ad_run *run, ad_collectives *to, int after_update) {
  size_t count = ad_run_param_count(run);
  int64_t times = count_passes(run);
  for (size_t i = 0; i < count && after_update; i++) AD_TRY(add_use(run, i, "step", 1, 1, to));
  for (size_t i = 0; i < count && !after_update; i++) AD_TRY(add_use(run, i, "forward", times, 0, to));
  for (size_t i = count; i-- > 0 && !after_update;) AD_TRY(add_use(run, i, "backward", times, 0, to));
  return AD_OK;
}

/* Fills `starts` and `of`: which collectives each parameter is in, in order. */
static ad_status index_params(size_t count, ad_collectives *to) {
  AD_TRY(ad_new(count + 2, &to->starts));
  AD_TRY(ad_new(to->param_count, &to->of));
  for (size_t i = 0; i < to->param_count; i++) to->starts[to->params[i] + 2]++;
  for (size_t i = 0; i < count; i++) to->starts[i + 2] += to->starts[i + 1];
  for (size_t c = 0; c < to->count; c++)
    for (size_t i = 0; i < to->list[c].count; i++) to->of[to->starts[to->params[to->list[c].first + i] + 1]++] = c;
  return AD_OK;
}

static ad_status list_collectives(ad_run *run, ad_collectives *to) {
  AD_TRY(list_gathers(run, to, 0));
  AD_TRY(list_reductions(run, to));
  AD_TRY(list_updates(run, to));
  AD_TRY(list_updated(run, to));
  AD_TRY(list_gathers(run, to, 1));
  return index_params(ad_run_param_count(run), to);
}

/* ---- writing the document ---- */

static json_t *step_document(const ad_planned *planned, size_t bytes) {
  char axes[80];
  const ad_reduction_plan *plan = &planned->plan;
  return json_pack("{s:s, s:s, s:I, s:s, s:I, s:i, s:s, s:I}", "op", ad_move_name(plan->move), "axes",
                   ad_axes_print(plan->axes, axes, sizeof axes), "group_size", (json_int_t)plan->group_size, "dtype",
                   ad_dtype_name(plan->dtype), "bytes", (json_int_t)bytes, "bucket", plan->bucket, "when",
                   planned->when, "times", (json_int_t)planned->times);
}

/* Returns the JSON of the collective for a parameter of `bytes` bytes. If the previous parameter had as many bytes,
 * returns the same object again. */
static json_t *shared_step(ad_planned *planned, size_t bytes) {
  if (planned->step && planned->step_bytes == bytes) return planned->step;
  json_decref(planned->step);
  planned->step_bytes = bytes;
  return planned->step = step_document(planned, bytes);
}

/* Lists the collectives that take one parameter from its gradient to its storage layout. The bytes are those of this
 * parameter alone. */
static json_t *path_document(const ad_param_spec *spec, size_t index, ad_collectives *collectives) {
  json_t *path = json_array();
  for (size_t i = collectives->starts[index]; i < collectives->starts[index + 1]; i++) {
    ad_planned *planned = &collectives->list[collectives->of[i]];
    size_t bytes = (size_t)ad_shape_numel(&spec->shape) * ad_dtype_size(planned->plan.dtype);
    json_array_append(path, shared_step(planned, bytes));
  }
  return path;
}

const char *ad_plan_carried_by(const json_t *step) {
  if (!strcmp(ad_text_of(step, "when"), "update")) return "matrices";
  return strcmp(ad_text_of(step, "op"), "all_gather") ? "gradients" : "parameters";
}

static json_t *policy_document(const ad_precision_policy *policy) {
  return json_pack("{s:s, s:s, s:s, s:s}", "param", ad_dtype_name(policy->param), "grad",
                   policy->raw ? "raw" : ad_dtype_name(policy->grad), "reduce", ad_dtype_name(policy->reduce),
                   "accumulate", ad_dtype_name(policy->accumulate));
}

/* Returns the JSON of the precision policy. If the previous parameter had the same policy, returns the same object
 * again. */
static json_t *shared_policy(const ad_precision_policy *policy, ad_collectives *collectives) {
  const ad_precision_policy *last = &collectives->policy;
  int same = collectives->policy_document && last->param == policy->param && last->grad == policy->grad &&
             last->raw == policy->raw && last->reduce == policy->reduce && last->accumulate == policy->accumulate;
  if (same) return collectives->policy_document;
  json_decref(collectives->policy_document);
  collectives->policy = *policy;
  return collectives->policy_document = policy_document(policy);
}

/* Adds what the recipe's groups say about a parameter, if it has any: the pattern of its group, and its optimizer. */
static void add_group(ad_run *run, size_t index, const char *name, json_t *document) {
  const ad_recipe *recipe = ad_run_recipe(run);
  int frozen = ad_run_param_at(run, index).spec->frozen;
  if (recipe->group_count) {
    size_t group = ad_recipe_group_of(recipe, name);
    json_object_set_new(document, "group", group ? json_string(recipe->groups[group - 1].pattern) : json_null());
    json_object_set_new(document, "optimizer",
                        frozen ? json_null() : json_string(ad_optimizer_names[ad_recipe_group_kind(recipe, group)]));
  }
  if (frozen) json_object_set_new(document, "frozen", json_true());
  size_t sharded = ad_recipe_shard_group_of(recipe, name);
  if (recipe->shard.group_count)
    json_object_set_new(document, "shard_group",
                        sharded ? json_string(recipe->shard.groups[sharded - 1].pattern) : json_null());
}

static json_t *param_document(ad_run *run, size_t index, ad_collectives *collectives) {
  const ad_param_spec *spec = ad_run_param_at(run, index).spec;
  ad_layout gradient = ad_layout_dual(&spec->layout);
  char name[AD_PROGRAM_NAME_SIZE], layout[160], storage[160], dual[160];
  json_t *document =
      json_pack("{s:s, s:I, s:s, s:I, s:s, s:s, s:s, s:O, s:o}", "name", name_of(run, index, name, sizeof name),
                "numel", (json_int_t)ad_shape_numel(&spec->shape), "mesh", ad_mesh_text(spec->layout.mesh), "pool",
                (json_int_t)collectives->pool, "layout", ad_layout_shown(&spec->layout, layout, sizeof layout),
                "storage", ad_layout_shown(&spec->storage, storage, sizeof storage), "gradient_layout",
                ad_layout_shown(&gradient, dual, sizeof dual), "precision", shared_policy(&spec->policy, collectives),
                "path", path_document(spec, index, collectives));
  const ad_layout *update = ad_param_update(spec);
  if (!ad_layout_equal(update, &spec->storage))
    json_object_set_new(document, "update", json_string(ad_layout_shown(update, storage, sizeof storage)));
  add_group(run, index, name, document);
  return document;
}

static json_t *collective_document(ad_run *run, const ad_collectives *of, const ad_planned *planned) {
  json_t *document = step_document(planned, planned->plan.bytes), *names = json_array();
  char name[AD_PROGRAM_NAME_SIZE];
  for (size_t i = 0; i < planned->count; i++)
    json_array_append_new(names, json_string(name_of(run, of->params[planned->first + i], name, sizeof name)));
  ad_run_param first = ad_run_param_at(run, of->params[planned->first]);
  const char *module = ad_program_module(ad_run_program(run), first.module)->name;
  json_object_set_new(document, "module", json_string(module));
  ad_plan_add_stage(ad_run_program(run), first.module, document);
  json_object_set_new(document, "mesh", json_string(ad_mesh_text(first.spec->layout.mesh)));
  json_object_set_new(document, "pool", json_integer((json_int_t)of->pool));
  json_object_set_new(document, "params", names);
  return document;
}

static ad_status add_collectives(ad_run *run, size_t pool, json_t *params, json_t *list) {
  ad_collectives collectives = {.pool = pool};
  ad_status status = list_collectives(run, &collectives);
  for (size_t i = 0; !status && i < ad_run_param_count(run); i++)
    if (ad_run_param_at(run, i).held) json_array_append_new(params, param_document(run, i, &collectives));
  for (size_t i = 0; !status && i < collectives.count; i++)
    json_array_append_new(list, collective_document(run, &collectives, &collectives.list[i]));
  release_collectives(&collectives);
  return status;
}

/* Adds to the document the parameters, collectives and transitions of each pool. */
static ad_status add_pools(const ad_plan_pools *pools, json_t *document) {
  json_t *params = json_array(), *collectives = json_array(), *activations = json_array();
  json_object_set_new(document, "params", params);
  json_object_set_new(document, "collectives", collectives);
  json_object_set_new(document, "activations", activations);
  for (size_t i = 0; i < pools->count; i++) {
    AD_TRY(add_collectives(pools->list[i].run, i, params, collectives));
    ad_traffic_list(&pools->list[i].traffic, i, activations);
  }
  return AD_OK;
}

static json_t *modules_document(const ad_plan_pools *pools) {
  const ad_program *program = ad_plan_program(pools);
  json_t *list = json_array();
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *spec = ad_program_module(program, m);
    json_t *document = json_pack("{s:s, s:s, s:I}", "name", spec->name, "mesh", ad_mesh_text(spec->mesh), "pool",
                                 (json_int_t)ad_plan_pool_under(pools, spec->mesh));
    ad_plan_add_stage(program, m, document);
    json_array_append_new(list, document);
  }
  return list;
}

static ad_status write_plan(const ad_recipe *recipe, const ad_plan_pools *pools, const ad_plan_world *world,
                            const char *trace, json_t *document) {
  json_object_set_new(document, "recipe", json_string(recipe->name));
  json_object_set_new(document, "world", json_integer((json_int_t)world->ranks));
  json_object_set_new(document, "modules", modules_document(pools));
  json_object_set_new(document, "pools", ad_plan_pools_document(pools));
  AD_TRY(ad_plan_add_schedule(pools, trace, document));
  AD_TRY(add_pools(pools, document));
  ad_plan_add_gradient_memory(pools, document);
  AD_TRY(ad_plan_add_bridges(pools, document));
  AD_TRY(ad_plan_add_updates(pools, world, document));
  AD_TRY(ad_plan_add_memory(recipe, world, pools, document));
  return ad_plan_add_leaves(recipe, world, pools, document);
}

ad_status ad_plan_document(const ad_recipe *recipe, const ad_plan_options *given, json_t **out) {
  ad_plan_options options;
  ad_plan_world world;
  ad_plan_pools pools;
  AD_TRY(ad_options_take(&options, sizeof options, given, "ad_plan_options"));
  AD_TRY(ad_plan_world_of(recipe, given, &world));
  AD_TRY(ad_plan_pools_act(recipe, &world, &pools));
  json_t *document = json_object();
  ad_status status = write_plan(recipe, &pools, &world, options.trace, document);
  ad_plan_pools_release(&pools);
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
  char *text = ad_json_dumps(document);
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the JSON document of the plan");
  *out = text;
  return AD_OK;
}
