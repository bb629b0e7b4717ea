/* Describes modules that are on other ranks: creates each module on backend dry as one of its ranks would, and keeps
 * only the shapes, dtypes and layouts of its arrays. */
#include "step/absent.h"

#include "base/memory.h"
#include "module/module.h"

static ad_array seen_from(const ad_comm *comm, const ad_array *array) {
  ad_array seen = ad_array_describe(comm, array->dtype, &array->shape, &array->layout);
  seen.scale = array->scale;
  return seen;
}

/* Describes the arrays of a parameter (value, master, optimizer states). If the master weights are the value itself,
 * both have the same description. */
static void describe_param(const ad_comm *comm, ad_module *twin, size_t param, ad_absent_module *out) {
  for (int part = 0; part < AD_PART_COUNT; part++) {
    const ad_array *array = ad_module_part(twin, param, (ad_param_part)part);
    size_t at = param * AD_PART_COUNT + (size_t)part;
    int is_value = array == ad_module_part(twin, param, AD_PART_VALUE);
    if (!array) continue;
    out->part[at] = &out->parts[is_value ? param * AD_PART_COUNT + AD_PART_VALUE : at];
    *out->part[at] = seen_from(comm, array);
  }
}

static ad_status describe_module(const ad_comm *comm, ad_module *twin, ad_absent_module *out) {
  size_t params = ad_module_param_count(twin), states = ad_module_state_count(twin);
  AD_TRY(ad_new(params * AD_PART_COUNT, &out->parts));
  AD_TRY(ad_new(params * AD_PART_COUNT, &out->part));
  AD_TRY(ad_new(states, &out->states));
  for (size_t i = 0; i < params; i++) describe_param(comm, twin, i, out);
  for (size_t i = 0; i < states; i++) out->states[i] = seen_from(comm, ad_module_state(twin, i));
  return AD_OK;
}

ad_status ad_absent_create(const ad_comm *comm, const ad_module_spec *spec, const ad_module_options *options,
                           ad_absent_module *out) {
  ad_comm *there;
  ad_module *twin;
  ad_module_options silent = *options;
  silent.reducer.trace = NULL;
  AD_TRY(ad_comm_open_dry(ad_mesh_first_rank(spec->mesh), ad_comm_size(comm), &there));
  ad_status status = ad_module_create(there, spec, &silent, &twin);
  if (!status) {
    status = describe_module(comm, twin, out);
    ad_module_destroy(twin);
  }
  ad_comm_close(there);
  return status;
}

void ad_absent_release(ad_absent_module *absent) {
  ad_release(absent->parts);
  ad_release(absent->part);
  ad_release(absent->states);
}
