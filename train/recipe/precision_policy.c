/* Derives from a recipe the precision policy and the storage of each parameter, the meshes, and the program. */
#include "recipe/precision_policy.h"

#include <fnmatch.h>
#include <string.h>
#include "addend/recipe.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/leaves.h"
#include "recipe/recipe.h"
#include "reduce/precision_policy.h"

ad_precision_policy ad_precision_policy_merge(ad_precision_policy base, ad_precision_policy over) {
  if (over.param) base.param = over.param;
  if (over.grad || over.raw) {
    base.grad = over.grad;
    base.raw = over.raw;
  }
  if (over.reduce) base.reduce = over.reduce;
  if (over.accumulate) base.accumulate = over.accumulate;
  return base;
}

ad_status ad_recipe_complete(const ad_recipe *recipe, ad_precision_policy *policy) {
  ad_precision_policy full = *policy;
  if (full.raw && !full.grad) full.grad = ad_dtype_wide(recipe->precision.compute);
  AD_TRY(ad_precision_policy_complete(&full));
  *policy = full;
  return AD_OK;
}

ad_patterns ad_recipe_overrides(const ad_recipe *recipe) {
  return (ad_patterns){recipe->precision.overrides, sizeof *recipe->precision.overrides,
                       recipe->precision.override_count};
}

ad_status ad_recipe_precision_policy(const ad_recipe *recipe, const char *param, ad_precision_policy *out) {
  AD_NEED(recipe, param, out);
  ad_precision_policy policy = recipe->precision.policy;
  size_t first = ad_pattern_first(ad_recipe_overrides(recipe), param);
  if (first < recipe->precision.override_count)
    policy = ad_precision_policy_merge(policy, recipe->precision.overrides[first].policy);
  AD_TRY(ad_recipe_complete(recipe, &policy));
  *out = policy;
  return AD_OK;
}

/* ---- overrides as earlier versions understood them ---- */

/* Sets *out to the parameter's policy if all overrides that match were merged, each over those before it. Returns 0 if
 * that policy contradicts itself. */
static int merge_all(const ad_recipe *recipe, const char *param, ad_precision_policy *out) {
  ad_precision_policy policy = recipe->precision.policy;
  for (size_t i = 0; i < recipe->precision.override_count; i++) {
    const ad_recipe_override *override = &recipe->precision.overrides[i];
    if (!fnmatch(override->pattern, param, 0)) policy = ad_precision_policy_merge(policy, override->policy);
  }
  *out = policy;
  return !ad_recipe_complete(recipe, out);
}

static int policies_equal(const ad_precision_policy *a, const ad_precision_policy *b) {
  return a->param == b->param && a->grad == b->grad && a->raw == b->raw && a->reduce == b->reduce &&
         a->accumulate == b->accumulate;
}

static const char *print_policy(const ad_precision_policy *policy, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  ad_text_add(&text, "{param: %s, grad: %s, reduce: %s, accumulate: %s}", ad_dtype_name(policy->param),
              policy->raw ? "raw" : ad_dtype_name(policy->grad), ad_dtype_name(policy->reduce),
              ad_dtype_name(policy->accumulate));
  return buffer;
}

/* Returns 1, with both policies, if this parameter had another policy while all overrides that match were merged. */
static int has_changed(const ad_recipe *recipe, const char *param, ad_precision_policy *now, ad_precision_policy *was) {
  return !ad_recipe_precision_policy(recipe, param, now) && merge_all(recipe, param, was) && !policies_equal(now, was);
}

void ad_recipe_warn_of_overrides(const ad_recipe *recipe, const ad_program *program) {
  char name[AD_PROGRAM_NAME_SIZE], first[AD_PROGRAM_NAME_SIZE] = "", now_text[96] = "", was_text[96] = "";
  ad_precision_policy now, was;
  size_t count = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++) {
      ad_program_param_name(program, m, i, name, sizeof name);
      if (!has_changed(recipe, name, &now, &was) || count++) continue;
      memcpy(first, name, sizeof first);
      print_policy(&now, now_text, sizeof now_text);
      print_policy(&was, was_text, sizeof was_text);
    }
  }
  if (count)
    ad_log(AD_LOG_WARNING,
           "%s: precision.overrides: only the first pattern that matches a parameter counts. So %zu parameters, the "
           "first of them `%s`, have other dtypes than in earlier versions, which merged all patterns that match: %s "
           "instead of %s",
           recipe->path, count, first, now_text, was_text);
}

ad_layout ad_recipe_storage(const ad_recipe_sharding *sharding, const ad_param_spec *spec) {
  ad_layout storage = spec->layout;
  int is_sharded = sharding->zero && (!spec->frozen || sharding->zero == 3);
  if (is_sharded && spec->shape.ndim) ad_layout_set(&storage, spec->sharded, AD_S(0));
  return storage;
}

/* Returns the layout in which a parameter of this storage is updated: with shard.outer_zero, the replicas of what is
 * sharded each have a part of it. */
static ad_layout update_layout(const ad_recipe *recipe, const ad_recipe_sharding *sharding, const ad_param_spec *spec) {
  ad_layout update = spec->storage;
  ad_type type = update.type[AD_DP_REPLICATE];
  int is_sharded = sharding->zero && !spec->frozen && spec->shape.ndim;
  int has_replicas = ad_mesh_axis_size(update.mesh, AD_DP_REPLICATE) > 1 && (type == AD_R || type == AD_I);
  if (recipe->shard.outer_zero && is_sharded && has_replicas) ad_layout_set(&update, AD_AXES(AD_DP_REPLICATE), AD_S(0));
  return update;
}

/* ---- the recipe's meshes and how many ranks they need ---- */

int ad_recipe_is_disjoint(const ad_recipe *recipe) {
  return recipe->placement && !strcmp(recipe->placement, AD_DISJOINT);
}

const char *ad_recipe_mesh_text(const ad_recipe *recipe, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  if (recipe->mesh_count == 1) {
    ad_text_add(&text, "%s", recipe->meshes[0].text);
    return buffer;
  }
  for (size_t i = 0; i < recipe->mesh_count; i++)
    ad_text_add(&text, "%s%s: %s", i ? ", " : "{", recipe->meshes[i].module, recipe->meshes[i].text);
  ad_text_add(&text, "}");
  return buffer;
}

/* Returns the number of ranks of a module's mesh. If modules share their ranks, so do the blocks of a mesh. */
static int64_t ranks_of(const ad_recipe *recipe, const ad_mesh *mesh) {
  int shared = recipe->mesh_count > 1 && !ad_recipe_is_disjoint(recipe);
  return ad_mesh_size(mesh) / (shared ? ad_mesh_axis_size(mesh, AD_BLOCK) : 1);
}

ad_status ad_recipe_check_sizes(const ad_recipe *recipe, const ad_mesh *const *meshes) {
  char buffer[512];
  ad_text sizes = ad_text_on(buffer, sizeof buffer);
  int differ = 0;
  if (ad_recipe_is_disjoint(recipe)) return AD_OK;
  for (size_t i = 0; i < recipe->mesh_count; i++) {
    differ |= ranks_of(recipe, meshes[i]) != ranks_of(recipe, meshes[0]);
    ad_text_add(&sizes, "%s%s has %s, so %lld ranks%s", i ? "; " : "",
                recipe->meshes[i].module ? recipe->meshes[i].module : "it", recipe->meshes[i].text,
                (long long)ranks_of(recipe, meshes[i]),
                ad_mesh_axis_size(meshes[i], AD_BLOCK) > 1 ? " that its blocks share" : "");
  }
  if (!differ) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the modules share their ranks, so their meshes must have equally many ranks, but are different (%s); "
                 "change the meshes, or set placement to disjoint, which gives each module its own ranks",
                 buffer);
}

int64_t ad_recipe_ranks(const ad_recipe *recipe, const ad_mesh *const *meshes) {
  int64_t ranks = ranks_of(recipe, meshes[0]);
  for (size_t i = 1; ad_recipe_is_disjoint(recipe) && i < recipe->mesh_count; i++) ranks += ranks_of(recipe, meshes[i]);
  return ranks;
}

static ad_status take_size(const ad_recipe *recipe, ad_mesh **meshes, int64_t *out) {
  for (size_t i = 0; i < recipe->mesh_count; i++) AD_TRY(ad_mesh_create(recipe->meshes[i].text, &meshes[i]));
  AD_TRY(ad_recipe_check_sizes(recipe, (const ad_mesh *const *)meshes));
  *out = ad_recipe_ranks(recipe, (const ad_mesh *const *)meshes);
  return AD_OK;
}

ad_status ad_recipe_world(const ad_recipe *recipe, int64_t *out) {
  AD_NEED(recipe, out);
  ad_mesh **meshes;
  AD_TRY(ad_new(recipe->mesh_count, &meshes));
  ad_status status = take_size(recipe, meshes, out);
  for (size_t i = 0; i < recipe->mesh_count; i++) ad_mesh_destroy(meshes[i]);
  ad_release(meshes);
  return status;
}

/* ---- creating the recipe's program ---- */

ad_dtype ad_recipe_compute(const ad_recipe *recipe, ad_dtype dtype) {
  if (dtype) return dtype;
  return recipe->precision.compute ? recipe->precision.compute : AD_F32;
}

ad_program_setting ad_recipe_setting(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype) {
  ad_dtype compute = ad_recipe_compute(recipe, dtype), residual = recipe->precision.residual;
  return (ad_program_setting){.comm = comm,
                              .disjoint = ad_recipe_is_disjoint(recipe),
                              .global_batch = recipe->train.global_batch,
                              .microbatches = ad_recipe_parts(recipe),
                              .leaves = recipe->train.leaves,
                              .seed = (uint64_t)recipe->train.seed,
                              .steps = recipe->train.steps,
                              .evaluated = recipe->evaluate.samples,
                              .compute = compute,
                              .residual = dtype || !residual ? ad_dtype_wide(compute) : residual,
                              .stages = recipe->schedule.stages,
                              .stage_layers = recipe->schedule.layers,
                              .stage_layer_count = recipe->schedule.layer_count};
}

/* Lists the leaves on which this rank's program runs, in ascending order. Sets *out to NULL if the recipe has no
 * leaves. */
static ad_status list_own(const ad_recipe *recipe, const ad_comm *comm, int64_t **out, size_t *count) {
  *out = NULL;
  *count = 0;
  if (!recipe->train.leaves) return AD_OK;
  AD_TRY(ad_recipe_list_passes(recipe, ad_comm_rank(comm), out));
  int64_t last = -1;
  for (int64_t i = 0; i < ad_recipe_rounds(recipe); i++)
    if ((*out)[i] > last) last = (*out)[(*count)++] = (*out)[i];
  return AD_OK;
}

ad_status ad_recipe_declare(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out) {
  const char **meshes;
  int64_t *own;
  AD_TRY(ad_new(recipe->mesh_count, &meshes));
  for (size_t i = 0; i < recipe->mesh_count; i++) meshes[i] = recipe->meshes[i].text;
  ad_program_setting setting = ad_recipe_setting(recipe, comm, dtype);
  setting.meshes = meshes;
  ad_status status = list_own(recipe, comm, &own, &setting.own_count);
  setting.own = own;
  if (!status) status = ad_program_create(recipe->program, recipe->options, &setting, out);
  ad_release(own);
  ad_release(meshes);
  return status;
}

/* Sets of one parameter whether it is frozen, its storage and its precision policy. */
static ad_status specify(const ad_recipe *recipe, ad_program *program, size_t module, size_t param, ad_dtype dtype) {
  char name[AD_PROGRAM_NAME_SIZE];
  ad_param_spec *spec = ad_program_param(program, module, param);
  ad_program_param_name(program, module, param, name, sizeof name);
  spec->frozen |= ad_recipe_freezes(recipe, name);
  ad_recipe_sharding sharding = ad_recipe_shard_of(recipe, name);
  spec->storage = ad_recipe_storage(&sharding, spec);
  spec->update = ad_program_module(program, module)->is_mirror ? spec->storage : update_layout(recipe, &sharding, spec);
  spec->policy = (ad_precision_policy){.param = dtype, .grad = dtype, .reduce = dtype, .accumulate = dtype};
  return dtype ? AD_OK : ad_recipe_precision_policy(recipe, name, &spec->policy);
}

ad_status ad_recipe_specify(const ad_recipe *recipe, ad_program *program, ad_dtype dtype) {
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t p = 0; p < ad_program_module(program, m)->param_count; p++)
      AD_TRY(specify(recipe, program, m, p, dtype));
  return AD_OK;
}

ad_status ad_recipe_program(const ad_recipe *recipe, const ad_comm *comm, ad_dtype dtype, ad_program **out) {
  AD_NEED(recipe, comm, out);
  ad_program *program;
  AD_TRY(ad_recipe_declare(recipe, comm, dtype, &program));
  ad_status status = ad_recipe_specify(recipe, program, dtype);
  if (!status) status = ad_program_settle_frozen(program);
  if (status)
    ad_program_destroy(program);
  else
    *out = program;
  return status;
}
