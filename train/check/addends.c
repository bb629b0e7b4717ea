/* Sums a gradient's addends in a separate backward, without the reducer that the check judges. */
#include "check/addends.h"

#include <math.h>
#include <string.h>

#include "kernels/kernels.h"
#include "base/memory.h"
#include "step/run.h"

static ad_status create_param(const ad_addends *addends, ad_addend_sums *sums, size_t i) {
  if (!ad_run_trains(addends->run, i)) return AD_OK;
  const ad_param_spec *spec = ad_run_param_at(addends->run, i).spec;
  ad_layout gradient = ad_layout_dual(&spec->layout), full = ad_layout_all(ad_run_everyone(addends->run).mesh, AD_R);
  ad_comm *comm = ad_run_comm(addends->run);
  sums->local[i] = ad_array_describe(comm, AD_F64, &spec->shape, &gradient);
  if (ad_run_param_at(addends->run, i).held)
    AD_TRY(ad_array_create(comm, AD_F64, &spec->shape, &gradient, &sums->local[i]));
  return ad_array_create(comm, AD_F64, &spec->shape, &full, &sums->full[i]);
}

/* Creates the f64 arrays for the sums of all parameters. A rank that has no part of a parameter gets an array without
 * memory; a frozen parameter, which has no gradient, gets none. */
static ad_status create_sums(const ad_addends *addends, ad_addend_sums *sums) {
  AD_TRY(ad_new(addends->count, &sums->local));
  AD_TRY(ad_new(addends->count, &sums->full));
  for (size_t i = 0; i < addends->count; i++) AD_TRY(create_param(addends, sums, i));
  return AD_OK;
}

ad_status ad_addends_create(ad_run *run, int with_sizes, ad_addends *out) {
  ad_addends addends = {.run = run, .count = ad_run_param_count(run)};
  ad_status status = create_sums(&addends, &addends.themselves);
  if (!status && with_sizes) status = create_sums(&addends, &addends.sizes);
  if (status)
    ad_addends_destroy(&addends);
  else
    *out = addends;
  return status;
}

static void destroy_sums(const ad_addends *addends, ad_addend_sums *sums) {
  for (size_t i = 0; sums->local && sums->full && i < addends->count; i++) {
    ad_array_destroy(ad_run_comm(addends->run), &sums->local[i]);
    ad_array_destroy(ad_run_comm(addends->run), &sums->full[i]);
  }
  ad_release(sums->local);
  ad_release(sums->full);
}

void ad_addends_destroy(ad_addends *addends) {
  destroy_sums(addends, &addends->themselves);
  destroy_sums(addends, &addends->sizes);
  *addends = (ad_addends){0};
}

static void add_one(void *context, size_t param, const ad_array *addend) {
  enum { BLOCK = 512 };
  /* Adds one microbatch's addend to the sums, in blocks, divided by the loss scale. */
  ad_addends *addends = context;
  double *sums = addends->themselves.local[param].data, block[BLOCK], unscale = ldexp(1, -addends->loss_scale);
  double *sizes = addends->sizes.local ? addends->sizes.local[param].data : NULL;
  size_t numel = ad_array_numel(addend), size = ad_dtype_size(addend->dtype);
  for (size_t at = 0; at < numel; at += BLOCK) {
    size_t n = numel - at < BLOCK ? numel - at : BLOCK;
    ad_cast(block, AD_F64, (const char *)addend->data + at * size, addend->dtype, n);
    for (size_t i = 0; i < n; i++) block[i] *= unscale;
    for (size_t i = 0; i < n; i++) sums[at + i] += block[i];
    for (size_t i = 0; i < n && sizes; i++) sizes[at + i] += fabs(block[i]);
  }
}

static void clear(const ad_addends *addends, const ad_addend_sums *sums) {
  for (size_t i = 0; sums->local && i < addends->count; i++)
    if (sums->local[i].data) memset(sums->local[i].data, 0, ad_array_bytes(&sums->local[i]));
}

static ad_status bring_together(const ad_addends *addends, const ad_addend_sums *sums) {
  for (size_t i = 0; sums->local && i < addends->count; i++)
    if (ad_run_trains(addends->run, i)) AD_TRY(ad_run_full(addends->run, &sums->local[i], &sums->full[i]));
  return AD_OK;
}

ad_status ad_addends_measure(ad_addends *addends, int64_t step, int loss_scale, ad_step_report *report) {
  addends->loss_scale = loss_scale;
  clear(addends, &addends->themselves);
  clear(addends, &addends->sizes);
  AD_TRY(ad_run_addends(addends->run, step, loss_scale, add_one, addends, report));
  AD_TRY(bring_together(addends, &addends->themselves));
  return bring_together(addends, &addends->sizes);
}
