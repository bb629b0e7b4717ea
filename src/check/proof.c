/* A proof's shared memory, its ranks, and the verdict over its numbers. */
#include "check/proof.h"

#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"

static size_t proof_bytes(size_t param_count) { return sizeof(ad_proof) + param_count * sizeof(ad_proof_param); }

static ad_status count_params(const ad_recipe *recipe, size_t *out) {
  ad_mesh *mesh;
  ad_model *model;
  AD_TRY(ad_recipe_mesh(recipe, &mesh));
  ad_status status = ad_recipe_model(recipe, mesh, &model);
  if (!status) {
    *out = ad_model_param_count(model);
    ad_model_destroy(model);
  }
  ad_mesh_destroy(mesh);
  return status;
}

ad_status ad_proof_create(const ad_recipe *recipe, ad_proof **out) {
  size_t count = 0;
  AD_TRY(count_params(recipe, &count));
  ad_proof *proof = mmap(NULL, proof_bytes(count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (proof == MAP_FAILED) return ad_fail(AD_MEMORY, "no memory for the proof of %zu parameters", count);
  proof->param_count = count;
  *out = proof;
  return AD_OK;
}

void ad_proof_destroy(ad_proof *proof) {
  if (proof) munmap(proof, proof_bytes(proof->param_count));
}

static int prove_on_rank(ad_comm *comm, void *context) {
  ad_status status = ad_prove(comm, context);
  if (status) ad_comm_fail(comm, status, ad_last_error());
  return status != AD_OK;
}

ad_status ad_proof_run(const ad_proof_job *job, ad_launch_result *result) {
  size_t count = job->proof->param_count;
  memset(job->proof, 0, proof_bytes(count));
  job->proof->param_count = count;
  ad_mesh *mesh;
  AD_TRY(ad_recipe_mesh(job->recipe, &mesh));
  ad_launch_options options = {
      .size = sizeof options, .ranks = ad_mesh_size(mesh), .function = prove_on_rank, .context = (void *)job};
  ad_mesh_destroy(mesh);
  return ad_launch(&options, result);
}

/* f64: the promise of the proof. f32 (and contracts of f32): a gradient element is a sum of T addends, T the tokens of
 * a step, in two different orders, reached through about 12 operations a layer; by the probabilistic bound of Higham
 * and Mary 2019 each sum is off by at most 8 sqrt(T) u, and independent errors of K operations grow by sqrt(K). */
static double bound_of_f32(const ad_recipe *recipe) {
  double tokens = (double)recipe->train.global_batch * (double)recipe->data.seq;
  double operations = 12.0 * (double)recipe->model.layers + 4;
  return 8 * sqrt(tokens) * sqrt(operations) * 0x1p-24;
}

static int all_f64(const ad_recipe *recipe) {
  const ad_contract *contract = &recipe->precision.contract;
  ad_dtype used[] = {recipe->precision.compute, contract->param, contract->grad, contract->reduce,
                     contract->accumulate};
  for (size_t i = 0; i < sizeof used / sizeof *used; i++)
    if (used[i] != AD_F64 && used[i] != 0) return 0;
  return contract->param == AD_F64 && recipe->precision.compute == AD_F64 && recipe->precision.override_count == 0;
}

int ad_proof_is_wide(const ad_recipe *recipe, const ad_check_options *options) {
  return options->recipe_dtype ? all_f64(recipe) : options->dtype != AD_F32;
}

double ad_proof_bound_of(const ad_recipe *recipe, const ad_check_options *options) {
  return ad_proof_is_wide(recipe, options) ? 1e-12 : bound_of_f32(recipe);
}

ad_axes ad_proof_reduced_axes(const ad_layout *layout) {
  ad_layout gradient = ad_layout_dual(layout);
  ad_axes axes = ad_layout_axes_of(&gradient, AD_P);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (ad_mesh_axis_size(layout->mesh, (ad_axis)axis) == 1) axes &= ~AD_AXES(axis);
  return axes;
}

static int param_passes(const ad_proof_param *param) {
  return param->replicas_equal && param->max_rel_err <= param->bound && !isnan(param->ratio);
}

int ad_proof_passes(const ad_proof *proof, int directional) {
  if (!proof->complete) return 0;
  if (directional) return proof->directional_err <= AD_DIRECTIONAL_BOUND;
  int passes = proof->initial_equal && proof->updates_equal && proof->norm_err <= proof->norm_bound &&
               proof->loss_err <= proof->loss_bound;
  for (size_t i = 0; i < proof->param_count; i++) passes &= param_passes(&proof->params[i]);
  return passes;
}
