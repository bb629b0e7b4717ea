/* A program whose batch is divided into leaves (train.leaves). Each leaf's tape runs on the ranks of one data-parallel
 * position. So the program sees only the mesh of that position, in which the data-parallel axes have size 1, while its
 * module and its counts are on the mesh of all ranks. Both meshes have the same axes, so a layout keeps its types when
 * it changes meshes. A parameter that is R on a data-parallel axis has a gradient that is P there, on the mesh of all
 * ranks. */
#include "base/error.h"
#include "base/memory.h"
#include "mesh/mesh.h"
#include "program/program.h"

/* ---- before the kind's `create` ---- */

/* Moves the mesh of all ranks from *mesh to *full, and sets *mesh to the mesh of this rank's data-parallel position. */
static ad_status slice(const ad_program *program, ad_mesh **mesh, ad_mesh **full) {
  *full = *mesh;
  *mesh = NULL;
  return ad_mesh_create_slice(*full, ad_comm_rank(program->setting.comm), mesh);
}

ad_status ad_leaves_slice(ad_program *program) {
  if (program->mesh_count != 1 || program->pool_count != 1)
    return ad_fail(AD_INVALID,
                   "program `%s` has %zu modules, but train.leaves is for programs with one module on one mesh; leave "
                   "train.leaves out",
                   program->kind->name, program->mesh_count);
  AD_TRY(slice(program, &program->pools[0], &program->full_pool));
  AD_TRY(slice(program, &program->meshes[0], &program->full_mesh));
  AD_TRY(ad_new(1, &program->leaf_meshes));
  program->leaf_meshes[program->leaf_mesh_count++] = (ad_leaf_mesh){program->full_mesh, program->meshes[0]};
  return ad_leaves_take_views(program);
}

/* ---- after the kind's `create` ---- */

/* Refuses a parameter that is not R on every data-parallel axis: its gradient would not be the sum over the leaves of
 * all ranks. */
static ad_status check_param(const ad_program *program, const ad_param_spec *param) {
  char axes[96];
  ad_axes wrong = AD_AXES_DP & ~ad_layout_axes_of(&param->layout, AD_R);
  if (!ad_mesh_same_ranks(param->layout.mesh, program->meshes[0]))
    return ad_fail(AD_INVALID,
                   "parameter `%s` is on \"%s\", but with train.leaves parameters must be on the module's mesh \"%s\" "
                   "or on a view of its ranks; declare the parameter there",
                   param->name, ad_mesh_text(param->layout.mesh), ad_mesh_text(program->meshes[0]));
  if (!wrong) return AD_OK;
  return ad_fail(AD_TYPE,
                 "parameter `%s` is not R on %s, but with train.leaves every parameter must be R there, because each "
                 "data-parallel rank has only some leaves of the batch; declare the parameter R on these axes, or "
                 "leave train.leaves out",
                 param->name, ad_axes_print(wrong, axes, sizeof axes));
}

/* Moves a parameter to the ranks of all positions. A parameter on a view that ZeRO shards over efsdp is there sharded
 * over dp_shard, like other parameters. */
static ad_status widen_param(ad_program *program, ad_param_spec *param) {
  const ad_mesh *full;
  AD_TRY(check_param(program, param));
  AD_TRY(ad_leaves_full_view(program, param->layout.mesh, &full));
  param->layout.mesh = full;
  if (param->storage.mesh) param->storage.mesh = full;
  if (param->update.mesh) param->update.mesh = full;
  if (param->sharded & AD_AXES(AD_EFSDP)) param->sharded = (param->sharded & ~AD_AXES(AD_EFSDP)) | AD_AXES(AD_DP_SHARD);
  return AD_OK;
}

static ad_status widen_params(ad_program *program, ad_planned_module *module) {
  for (size_t i = 0; i < module->spec.param_count; i++) AD_TRY(widen_param(program, &module->params[i]));
  return AD_OK;
}

/* Refuses a module with states, unless the kind says that they change only after a step. A state may change in each
 * microbatch, and later microbatches see the change. A rank does not see the changes made by leaves on other ranks, so
 * the state would depend on which rank computes which leaf. */
static ad_status widen_states(const ad_program *program, ad_planned_module *module) {
  if (module->spec.state_count && !program->kind->sums_leaves)
    return ad_fail(AD_INVALID,
                   "module `%s` has the state `%s`, which may change from one microbatch to the next, but with "
                   "train.leaves a rank computes only some leaves of the batch; leave train.leaves out",
                   module->spec.name, module->states[0].name);
  char layout[160];
  for (size_t i = 0; i < module->spec.state_count; i++) {
    ad_state_spec *state = &module->states[i];
    if (state->layout.mesh != program->meshes[0] || ad_layout_sharded_axes(&state->layout) & AD_AXES_DP)
      return ad_fail(AD_INVALID,
                     "state `%s` is on \"%s\" with the layout \"%s\", but with train.leaves a state must be on the "
                     "module's mesh and R or I on dp_replicate and dp_shard; leave train.leaves out",
                     state->name, ad_mesh_text(state->layout.mesh),
                     ad_layout_print(&state->layout, layout, sizeof layout));
    state->layout.mesh = program->full_mesh;
  }
  return AD_OK;
}

/* Puts a count on the mesh of all ranks. Each leaf is counted at one data-parallel position, so there the count is P on
 * the data-parallel axes, whatever its type on the mesh of one position. */
static ad_status widen_count(const ad_program *program, ad_count_spec *count) {
  const ad_mesh *mesh = count->layout.mesh;
  if (mesh != program->meshes[0] && mesh != program->pools[0])
    return ad_fail(AD_INVALID,
                   "count `%s` is on \"%s\", another view of the module's ranks, but with train.leaves counts must be "
                   "on the module's mesh itself; leave train.leaves out",
                   count->name, ad_mesh_text(mesh));
  count->layout.mesh = mesh == program->meshes[0] ? program->full_mesh : program->full_pool;
  ad_layout_set(&count->layout, AD_AXES_DP & ad_mesh_named(count->layout.mesh), AD_P);
  return AD_OK;
}

ad_status ad_leaves_widen(ad_program *program) {
  ad_planned_module *module = &program->modules[0];
  AD_TRY(widen_states(program, module));
  AD_TRY(widen_params(program, module));
  module->spec.mesh = program->full_mesh;
  for (size_t i = 0; i < program->count_count; i++) AD_TRY(widen_count(program, &program->counts[i]));
  return AD_OK;
}
