/* The shared memory of a proof, and the verdict over its numbers. prove.c starts its ranks. */
#include "check/proof.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "program/program.h"
#include "recipe/paper.h"

static size_t proof_bytes(size_t param_count) { return sizeof(ad_proof) + param_count * sizeof(ad_proof_param); }

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

ad_status ad_proof_create(const ad_recipe *recipe, ad_proof **out) {
  size_t count = 0;
  AD_TRY(count_params(recipe, &count));
  ad_proof *proof = mmap(NULL, proof_bytes(count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (proof == MAP_FAILED) return ad_fail(AD_MEMORY, "no memory for the check of %zu parameters", count);
  proof->param_count = count;
  *out = proof;
  return AD_OK;
}

void ad_proof_clear(ad_proof *proof) {
  size_t count = proof->param_count;
  memset(proof, 0, proof_bytes(count));
  proof->param_count = count;
}

void ad_proof_destroy(ad_proof *proof) {
  if (proof) munmap(proof, proof_bytes(proof->param_count));
}

static int all_f64(const ad_recipe *recipe) {
  const ad_contract *contract = &recipe->precision.contract;
  ad_dtype used[] = {recipe->precision.compute, contract->param, contract->grad, contract->reduce,
                     contract->accumulate};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++)
    if (used[i] != AD_F64 && used[i] != 0) return 0;
  return contract->param == AD_F64 && recipe->precision.compute == AD_F64 && recipe->precision.override_count == 0;
}

ad_dtype ad_proof_dtype(const ad_check_options *options) {
  if (options->recipe_dtype) return 0;
  return options->dtype ? options->dtype : AD_F64;
}

int ad_proof_is_wide(const ad_recipe *recipe, const ad_check_options *options) {
  return options->recipe_dtype ? all_f64(recipe) : options->dtype != AD_F32;
}

ad_axes ad_proof_reduced_axes(const ad_layout *layout) {
  ad_layout gradient = ad_layout_dual(layout);
  return ad_layout_axes_of(&gradient, AD_P) & ad_mesh_large(layout->mesh);
}

double ad_param_share(const ad_proof_param *param) {
  double share = param->max_rel_err == 0 ? 0 : param->max_rel_err / param->bound;
  return isnan(share) ? share : fmax(share, fmax(param->sum_share, param->process_share));
}

static int param_passes(const ad_proof_param *param) {
  return param->replicas_equal && ad_param_share(param) <= 1 && !isnan(param->ratio);
}

int ad_proof_passes(const ad_proof *proof, int directional) {
  if (!proof->complete) return 0;
  if (directional) return proof->directional_err <= AD_DIRECTIONAL_BOUND;
  int passes = proof->initial_equal && proof->updates_equal && proof->norm_err <= proof->norm_bound &&
               proof->loss_err <= proof->loss_bound && proof->turned <= proof->turned_bound &&
               proof->process_share <= 1 && proof->state_err <= AD_STATE_BOUND && !proof->calls[0] &&
               !proof->reports[0];
  for (size_t i = 0; i < proof->param_count; i++) passes &= param_passes(&proof->params[i]);
  return passes;
}

size_t ad_proof_reached(const ad_proof *proof, int directional) {
  size_t reached = 0;
  if (directional) return proof->derivative != 0;
  for (size_t i = 0; i < proof->param_count; i++) reached += proof->params[i].reached != 0;
  return reached;
}

int ad_proof_proves(const ad_proof *proof, int directional) {
  return ad_proof_passes(proof, directional) && proof->counted > 0 && ad_proof_reached(proof, directional) > 0;
}
