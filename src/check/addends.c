/* Sums a gradient's addends with a backward of its own, apart from the reducer that the proof judges. */
#include "check/addends.h"

#include <math.h>
#include <string.h>

#include "base/kernels.h"
#include "base/memory.h"

static ad_status create_param(ad_addends *addends, size_t i) {
  const ad_param_spec *spec = ad_run_param_at(addends->run, i).spec;
  ad_layout gradient = ad_layout_dual(&spec->layout), whole = ad_layout_all(ad_run_everyone(addends->run).mesh, AD_R);
  ad_comm *comm = ad_run_comm(addends->run);
  addends->local[i] = ad_array_describe(comm, AD_F64, &spec->shape, &gradient);
  if (ad_run_param_at(addends->run, i).held)
    AD_TRY(ad_array_create(comm, AD_F64, &spec->shape, &gradient, &addends->local[i]));
  return ad_array_create(comm, AD_F64, &spec->shape, &whole, &addends->whole[i]);
}

double ad_addend_size(double addend) { return fabs(addend); }
double ad_addend_itself(double addend) { return addend; }

ad_status ad_addends_create(ad_run *run, double (*of)(double addend), ad_addends *out) {
  ad_addends addends = {.run = run, .of = of, .count = ad_run_param_count(run)};
  ad_status status = ad_new(addends.count, &addends.local);
  if (!status) status = ad_new(addends.count, &addends.whole);
  for (size_t i = 0; i < addends.count && !status; i++) status = create_param(&addends, i);
  if (status)
    ad_addends_destroy(&addends);
  else
    *out = addends;
  return status;
}

void ad_addends_destroy(ad_addends *addends) {
  for (size_t i = 0; addends->local && addends->whole && i < addends->count; i++) {
    ad_array_destroy(ad_run_comm(addends->run), &addends->local[i]);
    ad_array_destroy(ad_run_comm(addends->run), &addends->whole[i]);
  }
  ad_release(addends->local);
  ad_release(addends->whole);
  *addends = (ad_addends){0};
}

static void add_one(void *context, size_t param, const ad_array *addend) {
  enum { BLOCK = 512 };
  ad_addends *addends = context;
  double *sums = addends->local[param].data, block[BLOCK];
  size_t numel = ad_array_numel(addend), size = ad_dtype_size(addend->dtype);
  for (size_t at = 0; at < numel; at += BLOCK) {
    size_t n = numel - at < BLOCK ? numel - at : BLOCK;
    ad_cast(block, AD_F64, (const char *)addend->data + at * size, addend->dtype, n);
    for (size_t i = 0; i < n; i++) sums[at + i] += addends->of(block[i]);
  }
}

ad_status ad_addends_measure(ad_addends *addends, int64_t step, ad_step_report *report) {
  for (size_t i = 0; i < addends->count; i++)
    if (addends->local[i].data) memset(addends->local[i].data, 0, ad_array_bytes(&addends->local[i]));
  AD_TRY(ad_run_addends(addends->run, step, add_one, addends, report));
  for (size_t i = 0; i < addends->count; i++)
    AD_TRY(ad_run_whole(addends->run, &addends->local[i], AD_HERE, &addends->whole[i]));
  return AD_OK;
}
