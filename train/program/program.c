/* Plans programs: collects the modules, counts, losses and phases that a kind's `create` adds, and checks that the
 * phases fit together. phase.c runs a phase; kinds.c has the kinds. */
#include "program/program.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "program/keys.h"
#include "mesh/mesh.h"

/* ---- queries about a program ---- */

const ad_program_kind *ad_program_kind_of(const ad_program *program) { return program->kind; }
const ad_program_setting *ad_program_setting_of(const ad_program *program) { return &program->setting; }
void *ad_program_own(const ad_program *program) { return program->own; }
int ad_program_has_validation(const ad_program *program) {
  const ad_program_kind *kind = program->kind;
  return kind->data.has_validation && AD_GUEST(kind, "has_validation", kind->data.has_validation(program->own));
}
const ad_mesh *ad_program_mesh(const ad_program *program, size_t module) {
  return ad_has(module, program->mesh_count, __func__, "module") ? program->meshes[module] : NULL;
}
const ad_mesh *ad_program_full_mesh(const ad_program *program, size_t module) {
  const ad_mesh *mesh = ad_program_mesh(program, module);
  return mesh && program->full_mesh ? program->full_mesh : mesh;
}
const ad_mesh *ad_program_pool(const ad_program *program, size_t pool) {
  return ad_has(pool, program->pool_count, __func__, "pool") ? program->pools[pool] : NULL;
}
size_t ad_program_stage_count(const ad_program *program) { return program->kind->has_stages ? program->mesh_count : 1; }
size_t ad_program_module_count(const ad_program *program) { return program->module_count; }
const ad_module_spec *ad_program_module(const ad_program *program, size_t module) {
  return ad_has(module, program->module_count, __func__, "module") ? &program->modules[module].spec : NULL;
}
ad_param_spec *ad_program_param(ad_program *program, size_t module, size_t param) {
  if (!ad_has(module, program->module_count, __func__, "module")) return NULL;
  const ad_planned_module *of = &program->modules[module];
  return ad_has(param, of->spec.param_count, __func__, "parameter") ? &of->params[param] : NULL;
}
size_t ad_program_count_count(const ad_program *program) { return program->count_count; }
const ad_count_spec *ad_program_count(const ad_program *program, size_t count) {
  return ad_has(count, program->count_count, __func__, "count") ? &program->counts[count] : NULL;
}
size_t ad_program_loss_count(const ad_program *program) { return program->loss_count; }
const ad_loss_spec *ad_program_loss(const ad_program *program, size_t loss) {
  return ad_has(loss, program->loss_count, __func__, "loss") ? &program->losses[loss] : NULL;
}
size_t ad_program_transfer_count(const ad_program *program) { return program->transfer_count; }
const ad_transfer_spec *ad_program_transfer(const ad_program *program, size_t transfer) {
  return ad_has(transfer, program->transfer_count, __func__, "transfer") ? &program->transfers[transfer] : NULL;
}
size_t ad_program_gives_param(const ad_program *program, const char *name) {
  size_t count = 0;
  for (size_t i = 0; i < program->transfer_count; i++) {
    const ad_transfer_spec *spec = &program->transfers[i];
    size_t length = strlen(spec->value);
    count += spec->is_parameter && !strncmp(name, spec->value, length) && name[length] == '.';
  }
  return count;
}
size_t ad_program_phase_count(const ad_program *program) { return program->phase_count; }
const ad_phase *ad_program_phase(const ad_program *program, size_t phase) {
  return ad_has(phase, program->phase_count, __func__, "phase") ? &program->phases[phase] : NULL;
}

int ad_program_names_modules(const ad_program *program) { return ad_program_kind_modules(program->kind)[1] != NULL; }

const char *ad_program_param_name(const ad_program *program, size_t module, size_t param, char *buffer, size_t size) {
  if (size) *buffer = 0;
  if (!ad_has(module, program->module_count, __func__, "module")) return buffer;
  const ad_planned_module *of = &program->modules[module];
  if (!ad_has(param, of->spec.param_count, __func__, "parameter")) return buffer;
  int prefixed = ad_program_names_modules(program);
  snprintf(buffer, size, "%s%s%s", prefixed ? of->spec.name : "", prefixed ? "." : "", of->params[param].name);
  return buffer;
}

/* ---- adding modules, counts and losses ---- */

static void release_module(ad_planned_module *module) {
  for (size_t i = 0; i < module->spec.param_count; i++) ad_release((char *)(uintptr_t)module->params[i].name);
  for (size_t i = 0; i < module->spec.state_count; i++) ad_release((char *)(uintptr_t)module->states[i].name);
  ad_release(module->params);
  ad_release(module->states);
}

/* Refuses a name that would be cut off in "MODULE.NAME". `what` and `i` name the parameter or state in the message. */
static ad_status check_name(const ad_module_spec *module, const char *what, size_t i, const char *name) {
  if (!name || !*name)
    return ad_fail(AD_INVALID, "module `%s`: %s %zu (from 0) has no name; give it one", module->name, what, i);
  size_t length = strlen(module->name) + 1 + strlen(name);
  if (length < AD_PROGRAM_NAME_SIZE) return AD_OK;
  return ad_fail(AD_INVALID,
                 "module `%.80s`: the name of %s %zu (from 0), `%.80s`, has %zu bytes together with the name of the "
                 "module, but at most %d are allowed; choose a shorter name",
                 module->name, what, i, name, length, AD_PROGRAM_NAME_SIZE - 1);
}

/* Copies the specs of parameters. The count is increased after each copy, so that a failure releases the copies made so
 * far. */
static ad_status copy_params(const ad_module_spec *given, ad_planned_module *to) {
  void *own;
  AD_TRY(ad_options_take_all(&own, sizeof *to->params, given->params, given->param_count, "ad_param_spec"));
  to->params = own;
  for (to->spec.param_count = 0; to->spec.param_count < given->param_count; to->spec.param_count++) {
    ad_param_spec *param = &to->params[to->spec.param_count];
    char *name;
    AD_TRY(check_name(given, "parameter", to->spec.param_count, param->name));
    AD_TRY(ad_copy_string(param->name, &name));
    param->name = name;
  }
  return AD_OK;
}

static ad_status copy_states(const ad_module_spec *given, ad_planned_module *to) {
  void *own;
  AD_TRY(ad_options_take_all(&own, sizeof *to->states, given->states, given->state_count, "ad_state_spec"));
  to->states = own;
  for (to->spec.state_count = 0; to->spec.state_count < given->state_count; to->spec.state_count++) {
    ad_state_spec *state = &to->states[to->spec.state_count];
    char *name;
    AD_TRY(check_name(given, "state", to->spec.state_count, state->name));
    AD_TRY(ad_copy_string(state->name, &name));
    state->name = name;
  }
  return AD_OK;
}

ad_status ad_program_add_module(ad_program *to, const ad_module_spec *given) {
  ad_module_spec own, *spec = &own;
  AD_NEED_AS("to, spec", to, given);
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_module_spec"));
  AD_NEED(spec->name, spec->mesh);
  if (spec->param_count) AD_NEED(spec->params);
  if (spec->state_count) AD_NEED(spec->states);
  AD_TRY(ad_grow(&to->modules, to->module_count, to->module_count + 1));
  ad_planned_module *module = &to->modules[to->module_count];
  *module = (ad_planned_module){.spec = *spec};
  module->spec.param_count = module->spec.state_count = 0;
  ad_status status = copy_params(spec, module);
  if (!status) status = copy_states(spec, module);
  if (status) {
    release_module(module);
    return status;
  }
  module->spec.params = module->params;
  module->spec.states = module->states;
  to->module_count++;
  return AD_OK;
}

ad_status ad_program_add_declared(ad_program *to, const char *name, const char *norm_group, ad_declarations *list) {
  AD_NEED(to, name, list);
  ad_module_spec spec = {.size = sizeof spec,
                         .name = name,
                         .mesh = list->replicated.mesh,
                         .params = list->list,
                         .param_count = list->count,
                         .states = list->states,
                         .state_count = list->state_count,
                         .norm_group = norm_group};
  ad_status status = list->status ? list->status : ad_program_add_module(to, &spec);
  ad_declarations_release(list);
  return status;
}

ad_status ad_program_add_count(ad_program *to, const ad_count_spec *given) {
  ad_count_spec own, *spec = &own;
  AD_NEED_AS("to, spec", to, given);
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_count_spec"));
  AD_NEED(spec->name, spec->layout.mesh);
  AD_TRY(ad_grow(&to->counts, to->count_count, to->count_count + 1));
  to->counts[to->count_count++] = *spec;
  return AD_OK;
}

ad_status ad_program_add_layer(ad_program *to, const char *name) {
  AD_NEED(to, name);
  AD_TRY(ad_grow(&to->layers, to->layer_count, to->layer_count + 1));
  AD_TRY(ad_copy_string(name, &to->layers[to->layer_count]));
  to->layer_count++;
  return AD_OK;
}

ad_status ad_program_add_loss(ad_program *to, const ad_loss_spec *given) {
  ad_loss_spec own, *spec = &own;
  AD_NEED_AS("to, spec", to, given);
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_loss_spec"));
  AD_NEED(spec->name);
  if (spec->count >= to->count_count) {
    return ad_fail(AD_INVALID,
                   "loss `%s` is divided by count number %zu (from 0), but the program has only %zu counts so "
                   "far; add the count before the loss",
                   spec->name, spec->count, to->count_count);
  }
  if (!isfinite(spec->coefficient) || !isfinite(spec->uniform))
    return ad_fail(
        AD_INVALID,
        "loss `%s`: `coefficient` and `uniform` must be finite numbers, but are %g and %g; set finite numbers",
        spec->name, spec->coefficient, spec->uniform);
  AD_TRY(ad_grow(&to->losses, to->loss_count, to->loss_count + 1));
  to->losses[to->loss_count++] = *spec;
  return AD_OK;
}

int ad_phase_lists(const char *const *names, const char *name) {
  for (; names && *names; names++)
    if (!strcmp(*names, name)) return 1;
  return 0;
}

size_t ad_program_find_value(const ad_program *program, const char *name) {
  size_t value = 0;
  while (value < program->value_count && strcmp(program->values[value], name) != 0) value++;
  return value;
}

/* ---- adding phases, and the values that they give each other ---- */

const ad_transfer_spec *ad_program_transfer_of(const ad_program *program, size_t value, size_t module) {
  for (size_t i = 0; i < program->transfer_count; i++) {
    const ad_transfer_spec *spec = &program->transfers[i];
    if (spec->module == module && !strcmp(spec->value, program->values[value])) return spec;
  }
  return NULL;
}

static ad_dtype residual_of(const ad_program_setting *setting) {
  return setting->residual ? setting->residual : ad_dtype_wide(setting->compute);
}

ad_dtype ad_transfer_dtype(const ad_program *program, const ad_transfer_spec *transfer, int backward) {
  ad_dtype compute = program->setting.compute;
  if (transfer->is_residual) return residual_of(&program->setting);
  return backward && transfer->is_parameter ? ad_dtype_wide(compute) : compute;
}

int ad_transfer_is_split(const ad_transfer_spec *transfer) {
  ad_layout from = ad_bridge_from(transfer->bridge);
  return !transfer->is_parameter && ad_layout_sharded_axes(&from);
}

size_t ad_program_giver(const ad_program *program, const char *value) {
  size_t phase = 0;
  while (!ad_phase_lists(program->phases[phase].gives, value)) phase++;
  return phase;
}

/* Refuses a bridge that does not lead from the mesh of the module that gives the value to the mesh of the module that
 * needs it. */
static ad_status check_transfer(const ad_program *to, const ad_transfer_spec *spec) {
  if (ad_program_find_value(to, spec->value) == to->value_count)
    return ad_fail(AD_INVALID,
                   "the value `%s` is transferred over a bridge, but no phase gives the value; add the phase that "
                   "gives it before the transfer",
                   spec->value);
  const ad_mesh *from = ad_bridge_from(spec->bridge).mesh, *at = ad_bridge_to(spec->bridge).mesh;
  size_t giver = to->phases[ad_program_giver(to, spec->value)].module;
  if (spec->module < to->module_count && from == to->meshes[giver] && at == to->meshes[spec->module]) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the bridge of the transfer of `%s` leads from the mesh \"%s\" to the mesh \"%s\"; create a bridge "
                 "from the mesh of the module that gives the value to the mesh of the module that needs the value",
                 spec->value, ad_mesh_text(from), ad_mesh_text(at));
}

ad_status ad_program_add_transfer(ad_program *to, const ad_transfer_spec *given) {
  ad_transfer_spec own, *spec = &own;
  AD_NEED_AS("to, spec", to, given);
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_transfer_spec"));
  AD_NEED(spec->value, spec->bridge);
  AD_TRY(check_transfer(to, spec));
  AD_TRY(ad_grow(&to->transfers, to->transfer_count, to->transfer_count + 1));
  to->transfers[to->transfer_count++] = *spec;
  return AD_OK;
}

/* Refuses a phase that needs a value of a phase on other ranks, if no transfer sends the value. */
static ad_status check_brought(const ad_program *to, const ad_phase *phase, const char *need) {
  const ad_phase *giver = &to->phases[ad_program_giver(to, need)];
  const ad_mesh *from = to->meshes[giver->module], *at = to->meshes[phase->module];
  if (ad_mesh_same_ranks(from, at) || ad_program_transfer_of(to, ad_program_find_value(to, need), phase->module))
    return AD_OK;
  return ad_fail(AD_INVALID,
                 "phase `%s` needs the value `%s`, which phase `%s` gives on other ranks; add the transfer of the "
                 "value (ad_program_add_transfer) before this phase",
                 phase->name, need, giver->name);
}

/* Refuses a phase that needs a value that no earlier phase gives. */
static ad_status check_needs(const ad_program *to, const ad_phase *phase) {
  for (const char *const *need = phase->needs; need && *need; need++) {
    if (ad_program_find_value(to, *need) == to->value_count) {
      return ad_fail(
          AD_INVALID,
          "phase `%s` needs the value `%s`, which no earlier phase gives; first add the phase that gives the value",
          phase->name, *need);
    }
    AD_TRY(check_brought(to, phase, *need));
  }
  return AD_OK;
}

static ad_status take_gives(ad_program *to, const ad_phase *phase) {
  for (const char *const *give = phase->gives; give && *give; give++) {
    if (ad_program_find_value(to, *give) < to->value_count) {
      return ad_fail(
          AD_INVALID,
          "phase `%s` gives the value `%s`, but an earlier phase gives a value of this name; choose another name",
          phase->name, *give);
    }
    if (to->value_count == AD_VALUES_MAX)
      return ad_fail(AD_INVALID,
                     "the phases of the program give more than %d values, the most that are allowed; give fewer",
                     AD_VALUES_MAX);
    AD_TRY(ad_grow(&to->values, to->value_count, to->value_count + 1));
    to->values[to->value_count++] = *give;
  }
  return AD_OK;
}

ad_status ad_program_add_phase(ad_program *to, const ad_phase *given) {
  ad_phase own, *phase = &own;
  AD_NEED_AS("to, phase", to, given);
  AD_TRY(ad_options_take(&own, sizeof own, given, "ad_phase"));
  AD_NEED(phase->name);
  if (!phase->run || phase->module >= to->module_count) {
    return ad_fail(AD_INVALID,
                   "phase `%s` has no function `run`, or names module %zu (from 0), although %zu modules were added; "
                   "set `run` and `module`",
                   phase->name, phase->module, to->module_count);
  }
  AD_TRY(check_needs(to, phase));
  AD_TRY(take_gives(to, phase));
  AD_TRY(ad_grow(&to->phases, to->phase_count, to->phase_count + 1));
  to->phases[to->phase_count++] = *phase;
  return AD_OK;
}

/* ---- creating a program ---- */

/* Makes a mesh for each block of a mesh with blocks. Each block becomes a module, and all these modules have the same
 * name. */
static ad_status add_blocks(ad_program *program, size_t pool) {
  const ad_mesh *mesh = program->pools[pool];
  int64_t blocks = ad_mesh_axis_size(mesh, AD_BLOCK), ranks = ad_mesh_size(mesh) / blocks;
  AD_TRY(ad_grow(&program->meshes, program->mesh_count, program->mesh_count + (size_t)blocks));
  AD_TRY(ad_grow(&program->pool_of, program->mesh_count, program->mesh_count + (size_t)blocks));
  for (int64_t i = 0; i < blocks; i++) {
    int64_t first = ad_mesh_first_rank(mesh) + (program->setting.disjoint ? i * ranks : 0);
    AD_TRY(ad_mesh_create_block(mesh, first, &program->meshes[program->mesh_count]));
    program->pool_of[program->mesh_count++] = pool;
  }
  return AD_OK;
}

ad_status ad_program_find_stages(const ad_program_setting *setting, const ad_mesh *mesh, int64_t *out) {
  int64_t pp = ad_mesh_axis_size(mesh, AD_PP), stages = setting->stages ? setting->stages : pp;
  if (stages < pp)
    return ad_fail(AD_INVALID,
                   "%lld stages are too few for pp=%lld, since each rank along pp needs at least one stage; set "
                   "schedule.stages to at least %lld, or to 0 for one stage on each rank",
                   (long long)stages, (long long)pp, (long long)pp);
  *out = stages;
  return AD_OK;
}

/* Makes a mesh for each stage of a pipeline. */
static ad_status add_stages(ad_program *program, size_t pool) {
  const ad_mesh *mesh = program->pools[pool];
  int64_t stages = 0, pp = ad_mesh_axis_size(mesh, AD_PP);
  AD_TRY(ad_program_find_stages(&program->setting, mesh, &stages));
  AD_TRY(ad_new((size_t)stages, &program->meshes));
  AD_TRY(ad_new((size_t)stages, &program->pool_of));
  program->setting.stages = stages;
  for (; program->mesh_count < (size_t)stages; program->mesh_count++)
    AD_TRY(ad_mesh_create_stage(mesh, (int64_t)program->mesh_count % pp, &program->meshes[program->mesh_count]));
  return AD_OK;
}

static ad_status add_meshes(ad_program *program, size_t pool) {
  return program->kind->has_stages ? add_stages(program, pool) : add_blocks(program, pool);
}

static ad_status create_meshes(ad_program *program, const ad_program_setting *setting) {
  size_t count = 0;
  int64_t first = 0;
  const char *const *names = ad_program_kind_modules(program->kind);
  while (names[count]) count++;
  AD_TRY(ad_new(count, &program->pools));
  for (; program->pool_count < count; program->pool_count++) {
    ad_mesh **mesh = &program->pools[program->pool_count];
    ad_status status = ad_mesh_create_pool(setting->meshes[program->pool_count], first, mesh);
    if (!status) status = add_meshes(program, program->pool_count);
    if (status) return ad_fail_in(status, "in the mesh of `%s`", names[program->pool_count]);
    if (setting->disjoint) first += ad_mesh_size(*mesh);
  }
  program->setting.meshes = NULL; /* the meshes belong to the caller */
  return AD_OK;
}

/* Copies the list of the microbatches that this rank runs; without one, lists all. */
static ad_status list_own(ad_program *program) {
  ad_program_setting *setting = &program->setting;
  size_t count = setting->own ? setting->own_count : (size_t)setting->microbatches;
  AD_TRY(ad_new(count, &program->own_list));
  for (size_t i = 0; i < count; i++) program->own_list[i] = setting->own ? setting->own[i] : (int64_t)i;
  setting->own = program->own_list;
  setting->own_count = count;
  return AD_OK;
}

typedef struct mistakes {
  ad_text text;
  int no_memory; /* 1: memory ran out, which is not an error of the options */
} mistakes;

static void collect(void *context, const char *key, ad_status status, const char *message) {
  mistakes *of = context;
  of->no_memory |= status == AD_MEMORY;
  ad_text_add(&of->text, "%s%s: %s", of->text.used ? "\n" : "", key, message);
}

static ad_status check_program(const ad_program *program) {
  char buffer[AD_MESSAGE_MAX];
  mistakes found = {.text = ad_text_on(buffer, sizeof buffer)};
  ad_complaints to = {collect, &found};
  ad_mesh **meshes = program->kind->has_stages ? program->meshes : program->pools;
  ad_keys_check(program->kind, program->options, &to);
  ad_keys_check_views(program->kind, program->options, meshes[0], &to);
  if (program->kind->rules.check)
    AD_GUEST_VOID(program->kind, "check",
                  program->kind->rules.check(program->options, &program->setting, (const ad_mesh *const *)meshes, &to));
  if (!found.text.used) return AD_OK;
  return ad_fail(found.no_memory ? AD_MEMORY : AD_INVALID, "%s", buffer);
}

/* Checks that the modules are those that the kind names, in the same order, each on its own mesh. */
static ad_status check_modules(const ad_program *program) {
  for (size_t i = 0; i < program->mesh_count || i < program->module_count; i++) {
    const char *name = i < program->mesh_count ? ad_program_kind_modules(program->kind)[program->pool_of[i]] : NULL;
    const ad_module_spec *spec = i < program->module_count ? &program->modules[i].spec : NULL;
    if (name && spec && !strcmp(name, spec->name) && spec->mesh == program->meshes[i]) continue;
    return ad_fail(AD_INVALID,
                   "program `%s`: module %zu (from 0) is `%s`, but the program lists `%s` at this position of "
                   "`modules`; add the modules in the listed order, each on its own mesh",
                   program->kind->name, i, spec ? spec->name : "", name ? name : "");
  }
  return AD_OK;
}

static ad_status check_whole(const ad_program *program) {
  AD_TRY(check_modules(program));
  if (program->phase_count && program->loss_count) return AD_OK;
  return ad_fail(AD_INVALID, "program `%s` has %zu phases and %zu losses, but needs at least one of each; add these",
                 program->kind->name, program->phase_count, program->loss_count);
}

static ad_status build(ad_program *program, const ad_program_setting *setting) {
  AD_TRY(create_meshes(program, setting));
  AD_TRY(list_own(program));
  if (setting->leaves) AD_TRY(ad_leaves_slice(program));
  AD_TRY(check_program(program));
  AD_TRY(AD_GUEST(program->kind, "create", program->kind->create(program->options, program, &program->own)));
  AD_TRY(check_whole(program));
  return setting->leaves ? ad_leaves_widen(program) : AD_OK;
}

ad_status ad_program_create(const ad_program_kind *kind, const void *options, const ad_program_setting *setting,
                            ad_program **out) {
  AD_NEED(kind, options, setting, out);
  AD_TRY(ad_program_kind_check(kind));
  AD_NEED(setting->comm, setting->meshes);
  ad_program *program;
  AD_TRY(ad_new(1, &program));
  program->kind = kind;
  program->options = options;
  program->setting = *setting;
  ad_status status = build(program, setting);
  if (status) {
    ad_program_destroy(program);
    return status;
  }
  *out = program;
  return AD_OK;
}

const ad_array *ad_program_batch_array(const ad_program *program, size_t index, char *name, size_t size) {
  const ad_program_kind *kind = program->kind;
  if (kind->data.batch_array)
    return AD_GUEST(kind, "batch_array", kind->data.batch_array(program->own, index, name, size));
  return ad_batch_list(program->batch, index, name, size);
}

const ad_array *ad_program_constant_array(const ad_program *program, size_t index, char *name, size_t size) {
  const ad_program_kind *kind = program->kind;
  return kind->data.constant_array
             ? AD_GUEST(kind, "constant_array", kind->data.constant_array(program->own, index, name, size))
             : NULL;
}

size_t ad_program_data_bytes(const ad_program *program) {
  const ad_program_kind *kind = program->kind;
  return kind->data.bytes ? AD_GUEST(kind, "bytes", kind->data.bytes(program->own)) : ad_batch_bytes(program->batch);
}

void ad_program_destroy(ad_program *program) {
  if (!program) return;
  if (program->own)
    AD_GUEST_VOID(program->kind, "destroy", (program->kind->destroy ? program->kind->destroy : free)(program->own));
  ad_batch_destroy(program->batch);
  for (size_t i = 0; i < program->module_count; i++) release_module(&program->modules[i]);
  for (size_t i = 0; i < program->mesh_count; i++) ad_mesh_destroy(program->meshes[i]);
  for (size_t i = 0; program->pools && ad_program_kind_modules(program->kind)[i]; i++)
    ad_mesh_destroy(program->pools[i]);
  ad_leaves_release_views(program);
  ad_mesh_destroy(program->full_mesh);
  ad_mesh_destroy(program->full_pool);
  ad_release(program->own_list);
  ad_release(program->pools);
  ad_release(program->pool_of);
  ad_release(program->modules);
  ad_release(program->meshes);
  ad_release(program->counts);
  ad_release(program->losses);
  for (size_t i = 0; i < program->layer_count; i++) ad_release(program->layers[i]);
  ad_release(program->layers);
  ad_release(program->phases);
  ad_release(program->transfers);
  ad_release(program->values);
  ad_release(program->learns);
  ad_release(program);
}

const double *ad_program_measured(const ad_program *program, size_t index, const char **name, size_t *count) {
  const ad_program_kind *kind = program->kind;
  return kind->account.measured ? AD_GUEST(kind, "measured", kind->account.measured(program->own, index, name, count))
                                : NULL;
}
