/* The reference of a proof: three runs of one rank each. One computes the gradients in f64 from the distributed values;
 * one only feeds the optimizer, in the dtypes of the distributed run; one runs free in them. */
#include "check/reference.h"

#include <string.h>

#include "base/kernels.h"
#include "base/memory.h"
#include "base/switches.h"

struct ad_reference {
  ad_comm *comm;
  ad_recipe recipe; /* borrows all but the mesh */
  ad_run *run, *fed, *free;
  size_t param_count;
  ad_array **fed_masters;
  ad_array *fed_gradients; /* the caller's memory, seen on the reference's mesh */
  const ad_array **fed_list;
};

static char single_mesh[] = "dp_shard=1", no_views[] = "";

static ad_status create_runs(ad_reference *reference, ad_dtype dtype, int several_steps) {
  ad_run_options options = {.size = sizeof options, .dtype = dtype, .quiet = 1};
  ad_run_options wide = {.size = sizeof wide, .dtype = AD_F64, .quiet = 1};
  AD_TRY(ad_comm_open_alone(&reference->comm));
  AD_TRY(ad_run_create(reference->comm, &reference->recipe, &wide, &reference->run));
  AD_TRY(ad_run_create(reference->comm, &reference->recipe, &options, &reference->fed));
  if (several_steps) AD_TRY(ad_run_create(reference->comm, &reference->recipe, &options, &reference->free));
  reference->param_count = ad_run_param_count(reference->run);
  AD_TRY(ad_new(reference->param_count, &reference->fed_masters));
  AD_TRY(ad_new(reference->param_count, &reference->fed_gradients));
  AD_TRY(ad_new(reference->param_count, &reference->fed_list));
  for (size_t i = 0; i < reference->param_count; i++) {
    reference->fed_masters[i] = ad_run_master(reference->fed, i);
    reference->fed_list[i] = &reference->fed_gradients[i];
  }
  return AD_OK;
}

ad_status ad_reference_create(const ad_recipe *recipe, ad_dtype dtype, int several_steps, ad_reference **out) {
  ad_reference *reference;
  AD_TRY(ad_new(1, &reference));
  reference->recipe = *recipe;
  reference->recipe.mesh = single_mesh;
  reference->recipe.views = no_views;
  reference->recipe.shard.zero = 0;
  ad_status status = create_runs(reference, dtype, several_steps);
  if (status) {
    ad_reference_destroy(reference);
    return status;
  }
  *out = reference;
  return AD_OK;
}

void ad_reference_destroy(ad_reference *reference) {
  if (!reference) return;
  ad_run_destroy(reference->run);
  ad_run_destroy(reference->fed);
  ad_run_destroy(reference->free);
  ad_comm_close(reference->comm);
  ad_release(reference->fed_masters);
  ad_release(reference->fed_gradients);
  ad_release(reference->fed_list);
  ad_release(reference);
}

static ad_array *part_of(ad_run *run, size_t param, ad_restart_part part) {
  if (part == AD_RESTART_VALUE) return ad_run_value(run, param);
  if (part == AD_RESTART_MASTER) return ad_run_master(run, param);
  return ad_adamw_state(ad_run_optimizer(run), param, part == AD_RESTART_SECOND_MOMENT);
}

/* Gradients follow from what the distributed ranks compute with: the values, not their masters. */
void ad_reference_restart(ad_reference *reference, size_t param, ad_restart_part part, const ad_array *whole) {
  memcpy(part_of(reference->fed, param, part)->data, whole->data, ad_array_bytes(whole));
  if (part != AD_RESTART_VALUE) return;
  ad_array *wide = ad_run_value(reference->run, param);
  ad_cast(wide->data, wide->dtype, whole->data, whole->dtype, ad_array_numel(whole));
}

ad_status ad_reference_step(ad_reference *reference, int64_t step, ad_step_report *out) {
  uint8_t planted[AD_SWITCH_COUNT];
  memcpy(planted, ad_switches, sizeof planted);
  memset(ad_switches, 0, sizeof planted);
  ad_status status = ad_run_refresh(reference->run, 0);
  if (!status) status = ad_run_step(reference->run, step, out);
  ad_step_report ignored;
  if (!status && reference->free) status = ad_run_step(reference->free, step, &ignored);
  memcpy(ad_switches, planted, sizeof planted);
  return status;
}

const ad_array *ad_reference_gradient(const ad_reference *reference, size_t param) {
  return ad_run_gradient(reference->run, param);
}

ad_status ad_reference_feed(ad_reference *reference, const ad_array *const *gradients, double lr, double factor) {
  for (size_t i = 0; i < reference->param_count; i++) {
    reference->fed_gradients[i] = *gradients[i];
    reference->fed_gradients[i].layout = reference->fed_masters[i]->layout;
  }
  AD_TRY(ad_adamw_step(ad_run_optimizer(reference->fed), reference->fed_masters, reference->fed_list, lr, factor,
                       AD_HERE));
  return ad_run_refresh(reference->fed, 1);
}

int ad_reference_agrees(ad_reference *reference, size_t param, ad_restart_part part, const ad_array *whole) {
  return memcmp(part_of(reference->fed, param, part)->data, whole->data, ad_array_bytes(whole)) == 0;
}

int ad_reference_fed_agrees(ad_reference *reference, size_t param, ad_restart_part part, const ad_array *whole) {
  return memcmp(part_of(reference->fed, param, part)->data, whole->data, ad_array_bytes(whole)) == 0;
}

const ad_array *ad_reference_free_value(const ad_reference *reference, size_t param) {
  return reference->free ? ad_run_master(reference->free, param) : NULL;
}
