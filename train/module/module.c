/* Creates and destroys modules (everything that belongs to one set of parameters), and finds each of their arrays. The
 * training step that uses modules is in train/step/. */
#include "module/module.h"

#include <string.h>
#include "base/error.h"
#include "base/injection.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/roundoff.h"
#include "reduce/precision_policy.h"
#include "reduce/store.h"

const char *ad_param_part_name(ad_optimizer_kind kind, ad_param_part part) {
  if (part == AD_PART_VALUE) return "value";
  if (part == AD_PART_MASTER) return "master";
  if (part == AD_PART_GRADIENT) return "gradient";
  return part < AD_PART_GRADIENT ? ad_optimizer_state_name(kind, (size_t)part - AD_PART_STATE) : NULL;
}

/* ---- checking and copying the specs ---- */

static ad_status check_spec(const ad_comm *comm, const ad_module_spec *spec) {
  AD_NEED_OF("ad_module_create", spec->name, spec->mesh);
  if (ad_mesh_has_rank(spec->mesh, ad_comm_rank(comm))) return AD_OK;
  return ad_fail(AD_INVALID,
                 "rank %lld is not on the module's mesh \"%s\"; create the module only on ranks of its mesh",
                 (long long)ad_comm_rank(comm), ad_mesh_text(spec->mesh));
}

static ad_status check_param(const ad_param_spec *param, size_t index, const ad_mesh *mesh) {
  if (!param->name || !param->layout.mesh || !param->storage.mesh)
    return ad_fail(AD_INVALID,
                   "parameter %zu (from 0) needs a name and two layouts, `compute` and `storage`; set all three",
                   index);
  if (ad_mesh_same_ranks(param->layout.mesh, mesh)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "parameter `%s` has a layout on \"%s\", which is not a view of the module's mesh \"%s\"; use a layout "
                 "on a view of this mesh",
                 param->name, ad_mesh_text(param->layout.mesh), ad_mesh_text(mesh));
}

/* Copies the parameters' specs, with defaults filled into their precision policies. */
static ad_status copy_params(ad_module *module, const ad_module_spec *spec) {
  AD_TRY(ad_new(spec->param_count, &module->params));
  for (; module->param_count < spec->param_count; module->param_count++) {
    ad_param_spec *own = &module->params[module->param_count];
    char *name;
    *own = spec->params[module->param_count];
    AD_TRY(check_param(own, module->param_count, spec->mesh));
    ad_status status = ad_precision_policy_complete(&own->policy);
    if (status) return ad_fail_in(status, "parameter `%s`", own->name);
    AD_TRY(ad_copy_string(own->name, &name));
    own->name = name;
  }
  return AD_OK;
}

/* ---- a module's states ---- */

static void fill_array(const ad_array *array, double value) {
  size_t size = ad_dtype_size(array->dtype);
  for (size_t i = 0; array->data && i < ad_array_numel(array); i++)
    ad_cast((char *)array->data + i * size, array->dtype, &value, AD_F64, 1);
}

static int is_taken(const ad_module *module, const char *name) {
  for (size_t i = 0; i < module->state_count; i++)
    if (!strcmp(module->states[i].spec.name, name)) return 1;
  return ad_module_find(module, name) < module->param_count;
}

/* Refuses a state that is P or V on some axis: its ranks have no common value to write to a file and read again. */
static ad_status check_state(const ad_module *module, const ad_state_spec *state) {
  if (!state->name || !state->layout.mesh)
    return ad_fail(AD_INVALID, "state %zu (from 0) needs a name and a layout; set both", module->state_count);
  if (is_taken(module, state->name))
    return ad_fail(AD_INVALID,
                   "the state `%s` has the name of a parameter or of another state of the module; choose another name",
                   state->name);
  if (!ad_mesh_same_ranks(state->layout.mesh, module->mesh))
    return ad_fail(AD_INVALID,
                   "state `%s` has a layout on \"%s\", which is not a view of the module's mesh \"%s\"; use a layout "
                   "on a view of this mesh",
                   state->name, ad_mesh_text(state->layout.mesh), ad_mesh_text(module->mesh));
  ad_axes none = ad_layout_axes_of(&state->layout, AD_P) | ad_layout_axes_of(&state->layout, AD_V);
  char axes[96];
  if (!none) return AD_OK;
  return ad_fail(AD_TYPE, "state `%s` is P or V over %s; make the state R, I or sharded on every axis", state->name,
                 ad_axes_print(none, axes, sizeof axes));
}

static ad_status create_states(ad_module *module, const ad_module_spec *spec) {
  AD_TRY(ad_new(spec->state_count, &module->states));
  for (; module->state_count < spec->state_count; module->state_count++) {
    ad_module_state_slot *state = &module->states[module->state_count];
    const ad_state_spec *given = &spec->states[module->state_count];
    char *name;
    AD_TRY(check_state(module, given));
    AD_TRY(ad_copy_string(given->name, &name));
    state->spec = *given;
    state->spec.name = name;
    ad_status status = ad_array_create(module->comm, given->dtype, &given->shape, &given->layout, &state->array);
    if (status) {
      ad_release(name);
      return ad_fail_in(status, "state `%s`", given->name);
    }
    fill_array(&state->array, given->value);
  }
  return AD_OK;
}

/* ---- creating a module: its store, reducer and optimizer ---- */

static ad_status create_store(ad_module *module) {
  ad_store_options options = {.size = sizeof options,
                              .compute = module->options.compute,
                              .releases = module->options.releases,
                              .prefetch = module->options.prefetch,
                              .groups = module->options.store_groups,
                              .group_count = module->options.reducer.group_count,
                              .group_of = module->options.reducer.group_of};
  return ad_store_create(module->comm, module->params, module->param_count, &options, &module->store);
}

/* Draws the initial values of the masters, so that updates start from all digits, and rounds the values from them. */
static ad_status initialise(ad_module *module) {
  for (size_t i = 0; i < module->param_count; i++) {
    AD_TRY(ad_param_initialise(&module->params[i], module->options.seed, ad_comm_rank(module->comm),
                               ad_store_master(module->store, i)));
  }
  return ad_store_refresh(module->store, AD_MASTERS_WRITTEN);
}

static ad_status acquire(void *context, size_t param) { return ad_store_acquire(context, param); }
static void release_param(void *context, size_t param) { ad_store_release(context, param); }

static ad_status list_frozen(ad_module *module) {
  size_t first = 0;
  while (first < module->param_count && !module->params[first].frozen) first++;
  if (first == module->param_count) return AD_OK;
  AD_TRY(ad_new(module->param_count, &module->frozen));
  for (size_t i = first; i < module->param_count; i++) module->frozen[i] = module->params[i].frozen != 0;
  return AD_OK;
}

static ad_status list_arrays(ad_module *module) {
  AD_TRY(ad_new(module->param_count, &module->masters));
  AD_TRY(ad_new(module->param_count, &module->computed));
  AD_TRY(ad_new(module->param_count, &module->gradients));
  for (size_t i = 0; i < module->param_count; i++) {
    module->masters[i] = ad_store_master(module->store, i);
    module->computed[i] = ad_store_compute(module->store, i);
    module->gradients[i] = ad_reducer_gradient(module->reducer, i);
  }
  AD_TRY(list_frozen(module));
  module->parameters = (ad_parameters){.size = sizeof(ad_parameters),
                                       .values = module->computed,
                                       .count = module->param_count,
                                       .reducer = module->reducer,
                                       .acquire = acquire,
                                       .release = release_param,
                                       .context = module->store,
                                       .frozen = module->frozen};
  return AD_OK;
}

static ad_status create_optimizer(ad_module *module) {
  if (module->is_mirror) return AD_OK;
  module->options.optimizer.comm = module->comm;
  return ad_optimizer_create_groups((const ad_array *const *)module->masters, module->params, module->param_count,
                                    &module->options.optimizer, &module->optimizer);
}

/* Completes the options. A size of 0 in a struct inside the options means defaults. */
static ad_status take_options(const ad_module_options *options, ad_module_options *out) {
  AD_TRY(ad_options_take(out, sizeof *out, options, "ad_module_options"));
  if (!out->reducer.size) out->reducer.size = sizeof out->reducer;
  if (!out->optimizer.size) out->optimizer.size = sizeof out->optimizer;
  return AD_OK;
}

static ad_status create_parts(ad_module *module, const ad_module_spec *spec, const ad_module_options *options) {
  AD_TRY(take_options(options, &module->options));
  AD_TRY(check_spec(module->comm, spec));
  module->mesh = spec->mesh;
  module->is_mirror = spec->is_mirror;
  AD_TRY(copy_params(module, spec));
  AD_TRY(create_states(module, spec));
  AD_TRY(create_store(module));
  AD_TRY(initialise(module));
  AD_TRY(
      ad_reducer_create(module->comm, module->params, module->param_count, &module->options.reducer, &module->reducer));
  if (module->options.has_one_pass) ad_store_follow(module->store, module->reducer);
  AD_TRY(list_arrays(module));
  return create_optimizer(module);
}

/* Creates the module from copies of the spec and of its lists, because the given structs may be of an older version. */
static ad_status take_spec(ad_module *module, const ad_module_spec *given, const ad_module_options *options) {
  ad_module_spec spec;
  void *params = NULL, *states = NULL;
  AD_TRY(ad_options_take(&spec, sizeof spec, given, "ad_module_spec"));
  if (spec.param_count) AD_NEED_IN("ad_module_create", "spec->params", spec.params);
  if (spec.state_count) AD_NEED_IN("ad_module_create", "spec->states", spec.states);
  ad_status status = ad_options_take_all(&params, sizeof *spec.params, spec.params, spec.param_count, "ad_param_spec");
  if (!status)
    status = ad_options_take_all(&states, sizeof *spec.states, spec.states, spec.state_count, "ad_state_spec");
  spec.params = params;
  spec.states = states;
  if (!status) status = create_parts(module, &spec, options);
  ad_release(params);
  ad_release(states);
  return status;
}

ad_status ad_module_create(ad_comm *comm, const ad_module_spec *spec, const ad_module_options *options,
                           ad_module **out) {
  AD_NEED(comm, spec, out);
  ad_module *module;
  AD_TRY(ad_new(1, &module));
  module->comm = comm;
  ad_status status = take_spec(module, spec, options);
  if (status) {
    ad_module_destroy(module);
    return status;
  }
  *out = module;
  return AD_OK;
}

void ad_module_destroy(ad_module *module) {
  if (!module) return;
  ad_optimizer_destroy(module->optimizer);
  ad_reducer_destroy(module->reducer);
  ad_store_destroy(module->store);
  for (size_t i = 0; i < module->state_count; i++) {
    ad_array_destroy(module->comm, &module->states[i].array);
    ad_release((char *)(uintptr_t)module->states[i].spec.name);
  }
  for (size_t i = 0; i < module->param_count; i++) ad_release((char *)(uintptr_t)module->params[i].name);
  ad_release(module->states);
  ad_release(module->params);
  ad_release(module->masters);
  ad_release(module->computed);
  ad_release(module->gradients);
  ad_release(module->frozen);
  ad_release(module);
}

/* ---- reading a module's arrays ---- */

const ad_mesh *ad_module_mesh(const ad_module *module) { return module->mesh; }
size_t ad_module_param_count(const ad_module *module) { return module->param_count; }
size_t ad_module_state_count(const ad_module *module) { return module->state_count; }
ad_array *ad_module_state(ad_module *module, size_t state) {
  return ad_has(state, module->state_count, __func__, "state") ? &module->states[state].array : NULL;
}
const ad_parameters *ad_module_parameters(ad_module *module) { return &module->parameters; }
ad_store *ad_module_store(ad_module *module) { return module->store; }
ad_reducer *ad_module_reducer(ad_module *module) { return module->reducer; }
ad_optimizer *ad_module_optimizer(ad_module *module) { return module->optimizer; }

size_t ad_module_find(const ad_module *module, const char *name) {
  size_t param = 0;
  while (param < module->param_count && strcmp(module->params[param].name, name) != 0) param++;
  return param;
}

ad_array *ad_module_part(ad_module *module, size_t param, ad_param_part part) {
  if (!ad_has(param, module->param_count, __func__, "parameter") || !ad_has(part, AD_PART_COUNT, __func__, "part"))
    return NULL;
  switch (part) {
    case AD_PART_VALUE:
      return ad_store_value(module->store, param);
    case AD_PART_MASTER:
      return module->masters[param];
    case AD_PART_GRADIENT:
      return (ad_array *)(uintptr_t)module->gradients[param];
    default:
      return module->optimizer ? ad_optimizer_state(module->optimizer, param, (size_t)part - AD_PART_STATE) : NULL;
  }
}

ad_status ad_module_needs_loss_scale(const ad_module_spec *spec, int *out) {
  *out = 0;
  for (size_t i = 0; i < spec->param_count; i++) {
    ad_precision_policy policy = spec->params[i].policy;
    AD_TRY(ad_precision_policy_complete(&policy));
    *out |= (!policy.raw && ad_dtype_needs_scale(policy.grad)) || ad_dtype_needs_scale(policy.reduce);
  }
  return AD_OK;
}

/* ---- changing a module's parameters ---- */

ad_status ad_module_refresh(ad_module *module, ad_written written) {
  AD_NEED(module);
  return ad_store_refresh(module->store, written);
}

ad_status ad_module_update_from(ad_module *module, const ad_array *const *gradients, const double *rates, double factor,
                                const char *site) {
  if (module->optimizer)
    AD_TRY(ad_optimizer_step_rates_at(module->optimizer, module->masters, gradients, rates, factor, site));
  for (size_t i = 0; module->frozen && i < module->param_count; i++)
    if (module->frozen[i]) ad_inject(AD_INJECT_FROZEN, ad_module_part(module, i, AD_PART_VALUE));
  return ad_store_refresh(module->store, AD_MASTERS_UPDATED);
}

ad_status ad_module_update_at(ad_module *module, const double *rates, double factor, const char *site) {
  AD_NEED(module, rates);
  return ad_module_update_from(module, module->gradients, rates, factor, site);
}
