/* The shared memory of a check, and the verdict on its numbers. check_ranks.c starts the ranks. */
#include "check/result.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "program/program.h"
#include "recipe/paper.h"
#include "mesh/mesh.h"

static size_t result_bytes(size_t param_count) {
  return sizeof(ad_check_result) + param_count * sizeof(ad_check_param);
}

static ad_status count_params(const ad_recipe *recipe, size_t *out) {
  ad_paper paper;
  AD_TRY(ad_paper_open(recipe, &paper));
  size_t count = 0;
  for (size_t m = 0; m < ad_program_module_count(paper.program); m++)
    count += ad_program_module(paper.program, m)->param_count;
  ad_paper_close(&paper);
  *out = count;
  return AD_OK;
}

ad_status ad_check_result_create(const ad_recipe *recipe, ad_check_result **out) {
  size_t count = 0;
  AD_TRY(count_params(recipe, &count));
  ad_check_result *result = mmap(NULL, result_bytes(count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (result == MAP_FAILED) return ad_fail(AD_MEMORY, "no memory for the check of %zu parameters", count);
  result->param_count = count;
  *out = result;
  return AD_OK;
}

void ad_check_result_clear(ad_check_result *result) {
  size_t count = result->param_count;
  memset(result, 0, result_bytes(count));
  result->param_count = count;
}

void ad_check_result_destroy(ad_check_result *result) {
  if (result) munmap(result, result_bytes(result->param_count));
}

static int all_f64(const ad_recipe *recipe) {
  const ad_precision_policy *policy = &recipe->precision.policy;
  ad_dtype used[] = {recipe->precision.compute, policy->param, policy->grad, policy->reduce, policy->accumulate};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++)
    if (used[i] != AD_F64 && used[i] != 0) return 0;
  return policy->param == AD_F64 && recipe->precision.compute == AD_F64 && recipe->precision.override_count == 0;
}

ad_dtype ad_check_dtype(const ad_check_options *options) {
  if (options->recipe_dtype) return 0;
  return options->dtype ? options->dtype : AD_F64;
}

int ad_check_is_wide(const ad_recipe *recipe, const ad_check_options *options) {
  return options->recipe_dtype ? all_f64(recipe) : options->dtype != AD_F32;
}

ad_axes ad_check_reduced_axes(const ad_layout *layout) {
  ad_layout gradient = ad_layout_dual(layout);
  return ad_layout_axes_of(&gradient, AD_P) & ad_mesh_large(layout->mesh);
}

double ad_param_share(const ad_check_param *param) {
  double share = param->max_rel_err == 0 ? 0 : param->max_rel_err / param->bound;
  return isnan(share) ? share : fmax(share, fmax(param->sum_share, param->process_share));
}

static int param_passes(const ad_check_param *param) {
  if (param->frozen) return param->replicas_equal && param->update_equal;
  return param->replicas_equal && ad_param_share(param) <= 1 && !isnan(param->ratio);
}

int ad_check_result_passes(const ad_check_result *result, int directional) {
  if (!result->complete) return 0;
  if (directional) return result->directional_err <= AD_DIRECTIONAL_BOUND;
  int passes = result->initial_equal && result->updates_equal && result->norm_err <= result->norm_bound &&
               result->loss_err <= result->loss_bound && result->choice_error <= result->choice_bound &&
               result->process_share <= 1 && result->state_err <= AD_STATE_BOUND && !result->calls[0] &&
               !result->reports[0];
  for (size_t i = 0; i < result->param_count; i++) passes &= param_passes(&result->params[i]);
  return passes;
}

size_t ad_check_result_reached(const ad_check_result *result, int directional) {
  size_t reached = 0;
  if (directional) return result->derivative != 0;
  for (size_t i = 0; i < result->param_count; i++) reached += result->params[i].reached != 0;
  return reached;
}

int ad_check_result_matches(const ad_check_result *result, int directional) {
  return ad_check_result_passes(result, directional) && result->counted > 0 &&
         ad_check_result_reached(result, directional) > 0;
}
