/* The modules of a run: those on this rank, what is known about the others, and all their parameters, numbered in the
 * order of the program. */
#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "module/module.h"
#include "products/gemm.h"
#include "products/products.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "recipe/sharding.h"
#include "step/run.h"

/* ---- creating a run's modules ---- */

/* Returns 1 if the reducer uses the memory of a group's bucket again for later buckets. It does from ZeRO 2 on, unless the
 * gradients of some microbatch or leaf are kept instead of sent. */
static int reuses_buckets(const ad_recipe *recipe, size_t group) {
  int reuses = ad_recipe_sharding_of_group(recipe, group).zero >= 2;
  for (int64_t i = 0; i < ad_recipe_rounds(recipe); i++)
    reuses &= ad_recipe_sync_of_group(recipe, group, (size_t)i) != AD_SYNC_NONE;
  return reuses;
}

static size_t bucket_bytes(double mib) { return (size_t)(mib * 1024 * 1024); }

/* The settings of the groups of shard.groups, as reducers and stores take them. */
typedef struct shard_groups {
  ad_reducer_group reducer[AD_GROUPS_MAX];
  ad_store_group store[AD_GROUPS_MAX];
} shard_groups;

/* Fills the settings of all groups but group 0. With leaves all groups have the `sync` of the rounds. */
static void take_shard_groups(const ad_recipe *recipe, shard_groups *out) {
  for (size_t g = 1; g <= recipe->shard.group_count; g++) {
    ad_recipe_sharding of = ad_recipe_sharding_of_group(recipe, g);
    size_t bytes = recipe->train.sync_count * sizeof *of.sync;
    int is_own = !recipe->train.leaves && memcmp(of.sync, recipe->train.sync, bytes) != 0;
    out->reducer[g - 1] = (ad_reducer_group){.size = sizeof(ad_reducer_group),
                                             .bucket_bytes = bucket_bytes(of.bucket_mib),
                                             .reuses = reuses_buckets(recipe, g),
                                             .window = (size_t)of.window,
                                             .sync = is_own ? of.sync : NULL,
                                             .sync_count = is_own ? recipe->train.sync_count : 0};
    out->store[g - 1] =
        (ad_store_group){.size = sizeof(ad_store_group), .releases = of.zero == 3, .prefetch = (int)of.prefetch};
  }
}

/* Returns the options of every module, without the groups of its parameters. */
static ad_module_options module_options(ad_run *run, const ad_optimizer_options *groups) {
  const ad_recipe *recipe = run->recipe;
  return (ad_module_options){.size = sizeof(ad_module_options),
                             .compute = ad_run_compute_dtype(run),
                             .releases = recipe->shard.zero == 3,
                             .prefetch = (int)recipe->shard.prefetch,
                             .has_one_pass = ad_program_phase_count(run->program) == 1,
                             .seed = (uint64_t)recipe->train.seed,
                             .reducer = {.size = sizeof(ad_reducer_options),
                                         .bucket_bytes = bucket_bytes(recipe->shard.bucket_mib),
                                         .reuses = reuses_buckets(recipe, 0),
                                         .window = (size_t)recipe->shard.window,
                                         .trace = ad_trace_bucket,
                                         .trace_context = &run->trace},
                             .optimizer = {.size = sizeof(ad_optimizer_setup),
                                           .groups = groups,
                                           .group_count = ad_recipe_group_count(recipe),
                                           .product = {.multiply = ad_gemm_multiply, .kind = ad_products_kind()}}};
}

/* For a run with leaves: fills `of`, and the list *sync with how far the gradients of each round are reduced, and sets
 * *out to `of`. For other runs sets *out to NULL. The caller releases *sync. */
static ad_status leaf_options(const ad_run *run, ad_leaf_options *of, ad_sync **sync, const ad_leaf_options **out) {
  *out = NULL;
  *sync = NULL;
  if (!run->leaves) return AD_OK;
  *of = (ad_leaf_options){.leaves = run->recipe->train.leaves, .rounds = ad_recipe_rounds(run->recipe)};
  AD_TRY(ad_new((size_t)of->rounds, sync));
  for (int64_t i = 0; i < of->rounds; i++) (*sync)[i] = ad_recipe_sync(run->recipe, (size_t)i);
  of->sync = *sync;
  *out = of;
  return AD_OK;
}

/* Lists the group of each parameter of a module. Sets *out to NULL if all are in group 0. The caller releases *out. */
static ad_status list_groups(const ad_run *run, size_t module, size_t **out) {
  char name[AD_PROGRAM_NAME_SIZE];
  size_t count = ad_program_module(run->program, module)->param_count;
  *out = NULL;
  if (!run->recipe->group_count) return AD_OK;
  AD_TRY(ad_new(count, out));
  for (size_t i = 0; i < count; i++)
    (*out)[i] = ad_recipe_group_of(run->recipe, ad_program_param_name(run->program, module, i, name, sizeof name));
  return AD_OK;
}

/* The same for the groups of shard.groups. */
static ad_status list_shard_groups(const ad_run *run, size_t module, size_t **out) {
  char name[AD_PROGRAM_NAME_SIZE];
  size_t count = ad_program_module(run->program, module)->param_count;
  *out = NULL;
  if (!run->recipe->shard.group_count) return AD_OK;
  AD_TRY(ad_new(count, out));
  for (size_t i = 0; i < count; i++)
    (*out)[i] =
        ad_recipe_shard_group_of(run->recipe, ad_program_param_name(run->program, module, i, name, sizeof name));
  return AD_OK;
}

/* Creates a module on a rank of its mesh. */
static ad_status create_here(ad_run *run, size_t i, ad_module_options options) {
  const ad_module_spec *spec = ad_program_module(run->program, i);
  char prefix[AD_PROGRAM_NAME_SIZE], files[AD_PARAM_NAME_SIZE];
  snprintf(prefix, sizeof prefix, "%s.", spec->name);
  snprintf(files, sizeof files, "stage%zu.", i);
  options.reducer.prefix = ad_program_names_modules(run->program) ? prefix : NULL;
  options.reducer.files = ad_program_stage_count(run->program) > 1 ? files : NULL;
  AD_TRY(ad_module_create(run->comm, spec, &options, &run->modules.here[i]));
  run->modules.parameters[i] = ad_module_parameters(run->modules.here[i]);
  return AD_OK;
}

/* Creates a module, or, on a rank that its mesh does not have, what is known about it there. */
static ad_status create_module(ad_run *run, size_t i, const ad_module_options *options) {
  const ad_module_spec *spec = ad_program_module(run->program, i);
  ad_module_options own = *options;
  size_t *group_of, *shard_group_of;
  AD_TRY(list_groups(run, i, &group_of));
  ad_status status = list_shard_groups(run, i, &shard_group_of);
  own.optimizer.group_of = group_of;
  own.reducer.group_of = shard_group_of;
  if (run->options.cuts) own.optimizer.cuts = run->options.cuts + run->modules.param_count - spec->param_count;
  int is_here = ad_mesh_has_rank(spec->mesh, ad_comm_rank(run->comm));
  if (!status && is_here) status = create_here(run, i, own);
  if (!status && !is_here && !run->options.plans)
    status = ad_absent_create(run->comm, spec, &own, &run->modules.absent[i]);
  ad_release(group_of);
  ad_release(shard_group_of);
  return status;
}

static ad_status create_modules(ad_run *run, const ad_module_options *options) {
  size_t count = ad_program_module_count(run->program);
  for (size_t i = 0; i < count; i++) {
    const ad_module_spec *spec = ad_program_module(run->program, i);
    run->modules.param_count += spec->param_count;
    ad_status status = create_module(run, i, options);
    int scales = 0;
    if (!status) status = ad_module_needs_loss_scale(spec, &scales);
    if (status) return count > 1 ? ad_fail_in(status, "module `%s`", spec->name) : status;
    run->loss_scale.enabled |= scales;
  }
  return AD_OK;
}

ad_status ad_run_modules_create(ad_run *run) {
  size_t count = ad_program_module_count(run->program);
  ad_optimizer_options groups[AD_GROUPS_MAX];
  ad_recipe_optimizers(run->recipe, run->options.dtype, groups);
  ad_module_options options = module_options(run, groups);
  shard_groups sharded;
  take_shard_groups(run->recipe, &sharded);
  options.reducer.groups = sharded.reducer;
  options.reducer.group_count = run->recipe->shard.group_count;
  options.store_groups = sharded.store;
  ad_leaf_options leaves;
  ad_sync *sync;
  AD_TRY(ad_new(count, &run->modules.here));
  AD_TRY(ad_new(count, &run->modules.absent));
  AD_TRY(ad_new(count, &run->modules.parameters));
  AD_TRY(leaf_options(run, &leaves, &sync, &options.reducer.leaves));
  ad_status status = create_modules(run, &options);
  ad_release(sync);
  if (status) return status;
  run->loss_scale.exponent = run->loss_scale.enabled ? (int)run->recipe->precision.loss_scale : 0;
  return AD_OK;
}

void ad_run_modules_destroy(ad_run *run) {
  size_t count = run->program ? ad_program_module_count(run->program) : 0;
  for (size_t i = 0; run->modules.here && i < count; i++) ad_module_destroy(run->modules.here[i]);
  for (size_t i = 0; run->modules.absent && i < count; i++) ad_absent_release(&run->modules.absent[i]);
  ad_release(run->modules.absent);
  ad_release(run->modules.parameters);
  ad_release(run->modules.here);
}

/* ---- finding a run's modules and parameters ---- */

ad_module *ad_run_module(const ad_run *run, size_t module) {
  return ad_has(module, ad_program_module_count(run->program), __func__, "module") ? run->modules.here[module] : NULL;
}

const ad_parameters *ad_run_parameters(const ad_run *run, size_t module) { return run->modules.parameters[module]; }

void ad_run_show_parameters(ad_run *run, size_t module, const ad_parameters *parameters) {
  ad_module *here = run->modules.here[module];
  if (here) run->modules.parameters[module] = parameters ? parameters : ad_module_parameters(here);
}

size_t ad_run_param_count(const ad_run *run) { return run->modules.param_count; }

ad_run_param ad_run_param_at(const ad_run *run, size_t index) {
  ad_run_param found = {.param = index};
  if (!ad_has(index, ad_run_param_count(run), __func__, "parameter")) return (ad_run_param){0};
  const ad_planned_module *modules = run->program->modules;
  while (found.param >= modules[found.module].spec.param_count) found.param -= modules[found.module++].spec.param_count;
  found.spec = &modules[found.module].spec.params[found.param];
  found.held = run->modules.here[found.module];
  return found;
}

ad_recipe_sharding ad_run_sharding(const ad_run *run, size_t index) {
  ad_run_param at = ad_run_param_at(run, index);
  char name[AD_PROGRAM_NAME_SIZE];
  return ad_recipe_shard_of(run->recipe, ad_program_param_name(run->program, at.module, at.param, name, sizeof name));
}

ad_array *ad_run_part(const ad_run *run, size_t index, ad_param_part part) {
  ad_run_param at = ad_run_param_at(run, index);
  if (!at.spec || !ad_has(part, AD_PART_COUNT, __func__, "part")) return NULL;
  if (at.held) return ad_module_part(at.held, at.param, part);
  if (run->options.plans) return NULL;
  return run->modules.absent[at.module].part[at.param * AD_PART_COUNT + (size_t)part];
}

int ad_run_trains(const ad_run *run, size_t index) {
  ad_run_param at = ad_run_param_at(run, index);
  return at.spec && !at.spec->frozen;
}

ad_array *ad_run_state(const ad_run *run, size_t module, size_t state) {
  if (!ad_has(module, ad_program_module_count(run->program), __func__, "module")) return NULL;
  if (!ad_has(state, ad_program_module(run->program, module)->state_count, __func__, "state")) return NULL;
  if (run->modules.here[module]) return ad_module_state(run->modules.here[module], state);
  return run->options.plans ? NULL : &run->modules.absent[module].states[state];
}

ad_status ad_run_full_at(ad_run *run, const ad_array *in, ad_array *out, const char *site) {
  AD_NEED(run, in, out);
  return ad_array_full_for_at(run->comm, &run->everyone, in->layout.mesh, in, out, site);
}

ad_status ad_run_refresh(ad_run *run, ad_written written) {
  AD_NEED(run);
  for (size_t i = 0; i < ad_program_module_count(run->program); i++)
    if (run->modules.here[i]) AD_TRY(ad_module_refresh(run->modules.here[i], written));
  return AD_OK;
}
