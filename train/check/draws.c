/* Takes one process's step several times, each time with another order of summation. */
#include "check/draws.h"

#include "base/memory.h"
#include "base/injection.h"
#include "module/module.h"
#include "products/gemm_split.h"
#include "step/run.h"

static size_t numel_of(const ad_draws *draws, size_t param) {
  return (size_t)ad_shape_numel(&ad_run_param_at(draws->addends.run, param).spec->shape);
}

ad_status ad_draws_create(ad_run *run, int shards_formulas, ad_draws *out) {
  ad_draws draws = {.shards_formulas = shards_formulas};
  AD_TRY(ad_addends_create(run, 0, &draws.addends));
  ad_status status = ad_new(draws.addends.count, &draws.deviations);
  for (size_t i = 0; i < draws.addends.count && !status; i++)
    if (ad_run_trains(run, i)) status = ad_new(AD_DRAWS * numel_of(&draws, i), &draws.deviations[i]);
  if (status)
    ad_draws_destroy(&draws);
  else
    *out = draws;
  return status;
}

void ad_draws_destroy(ad_draws *draws) {
  for (size_t i = 0; draws->deviations && i < draws->addends.count; i++) ad_release(draws->deviations[i]);
  ad_release(draws->deviations);
  ad_addends_destroy(&draws->addends);
  *draws = (ad_draws){0};
}

const float *ad_draws_deviation(const ad_draws *draws, size_t param, int draw) {
  return draws->deviations[param] + (size_t)draw * numel_of(draws, param);
}

static void keep_draw(ad_draws *draws, int draw, const ad_run *reference) {
  for (size_t i = 0; i < draws->addends.count; i++) {
    if (!ad_run_trains(reference, i)) continue;
    const double *own = draws->addends.themselves.full[i].data;
    const double *exact = ad_run_part(reference, i, AD_PART_GRADIENT)->data;
    size_t numel = numel_of(draws, i);
    float *to = draws->deviations[i] + (size_t)draw * numel;
    for (size_t k = 0; k < numel; k++) to[k] = (float)(own[k] - exact[k]);
  }
}

static ad_status take_draw(ad_draws *draws, int draw, int64_t step) {
  gemm_splits splits = {.seed = (uint64_t)draw, .rounds_between = draws->shards_formulas};
  if (draw) ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){ad_gemm_split, &splits});
  ad_status status = ad_addends_measure(&draws->addends, step, 0, &draws->reports[draw]);
  ad_injection_set(AD_INJECT_PRODUCT, (ad_injection){0});
  return status;
}

ad_status ad_draws_take(ad_draws *draws, int64_t step, const ad_run *reference) {
  for (int draw = 0; draw < AD_DRAWS; draw++) {
    AD_TRY(take_draw(draws, draw, step));
    keep_draw(draws, draw, reference);
  }
  return AD_OK;
}
