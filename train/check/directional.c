/* The difference quotient (L(theta + h d) - L(theta - h d)) / 2h of the distributed loss against <gradient, d>, along
 * one random direction d. Elements of d are drawn by global index; those of frozen parameters are 0. The quotient needs only the forward pass, so it does
 * not depend on the backward pass and the reductions that it checks. */
#include "check/directional.h"

#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/injection.h"
#include "addend/helpers.h"
#include "module/module.h"
#include "tensor/tape.h"
#include "step/run.h"
#include "layout/type.h"

enum { DIRECTION_SEED = 7 };

/* A rank's part of an array, for finding where its elements are in the full value. */
typedef struct ad_walk {
  const ad_array *array;
  int64_t rank;
} ad_walk;

/* Returns the row-major index, in the full array, of the element with row-major index `local` in this rank's part. */
static int64_t global_index(const ad_walk *walk, int64_t local) {
  const ad_array *array = walk->array;
  int64_t index = 0, stride = 1;
  for (int dim = array->shape.ndim - 1; dim >= 0; dim--) {
    int64_t at = local % array->local.dim[dim];
    local /= array->local.dim[dim];
    ad_span spans[64];
    int count = ad_layout_spans(&array->layout, dim, array->shape.dim[dim], walk->rank, spans, 64);
    int i = 0;
    while (i + 1 < count && at >= spans[i].count) at -= spans[i++].count;
    index += (spans[i].first + at) * stride;
    stride *= array->shape.dim[dim];
  }
  return index;
}

static double direction_at(const ad_walk *walk, size_t param, int64_t local) {
  return ad_random_normal(DIRECTION_SEED, param, (uint64_t)global_index(walk, local));
}

static ad_status save_values(ad_run *run, double **out) {
  size_t total = 0, count = ad_run_param_count(run);
  for (size_t i = 0; i < count; i++) total += ad_array_numel(ad_run_part(run, i, AD_PART_VALUE));
  AD_TRY(ad_new(total, out));
  double *saved = *out;
  for (size_t i = 0; i < count; i++) {
    const ad_array *value = ad_run_part(run, i, AD_PART_VALUE);
    for (size_t j = 0; j < ad_array_numel(value); j++) *saved++ = ((double *)value->data)[j];
  }
  return AD_OK;
}

static ad_status set_values(ad_run *run, const double *saved, double h) {
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    ad_array *value = ad_run_part(run, i, AD_PART_VALUE);
    ad_walk walk = {value, ad_comm_rank(ad_run_comm(run))};
    for (size_t j = 0; j < ad_array_numel(value); j++) {
      double d = h == 0 || !ad_run_trains(run, i) ? 0 : h * direction_at(&walk, i, (int64_t)j);
      ((double *)value->data)[j] = *saved++ + d;
    }
  }
  return ad_run_refresh(run, AD_VALUES_WRITTEN);
}

/* ---- constants that change with the parameters ---- */

enum { CONSTANTS_MAX = 4096 };

/* The constants of a forward pass in their order, each as a hash of its values. Later passes compare their constants
 * with those of the first pass. */
typedef struct ad_constants {
  uint64_t hashes[CONSTANTS_MAX];
  size_t count, known; /* numbers of constants: of this pass so far, and of the first pass */
  char *changed;       /* the first line with a constant that differs; "": none so far */
  size_t size;
} ad_constants;

/* Returns the FNV-1a hash of the bytes. */
static uint64_t hash_of(const void *bytes, size_t count) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < count; i++) hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
  return hash;
}

static void see_constant(void *context, void *passing) {
  ad_constants *seen = context;
  const ad_constant_passing *pass = passing;
  size_t i = seen->count++;
  if (i >= CONSTANTS_MAX || !pass->value->data) return;
  uint64_t hash = hash_of(pass->value->data, ad_array_bytes(pass->value));
  if (!seen->known)
    seen->hashes[i] = hash;
  else if (i < seen->known && seen->hashes[i] != hash && !*seen->changed)
    snprintf(seen->changed, seen->size, "%s", pass->site ? pass->site : AD_NO_SITE);
}

/* ---- slopes of the loss along the direction ---- */

typedef struct ad_slopes {
  double central, left, right; /* left, right: slopes from the parameters to either side, from -h and to +h */
} ad_slopes;

static ad_status loss_at(ad_run *run, const double *saved, double h, ad_constants *seen, double *out) {
  AD_TRY(set_values(run, saved, h));
  seen->known = seen->known ? seen->known : seen->count;
  seen->count = 0;
  ad_injection before = ad_injection_set(AD_INJECT_CONSTANT, (ad_injection){see_constant, seen});
  ad_status status = ad_run_loss(run, 0, AD_TRAINED_ON, out);
  ad_injection_set(AD_INJECT_CONSTANT, before);
  return status;
}

/* Computes difference quotients of the loss with step h. `here` is the loss at the parameters; if it is NaN (not
 * known), the slopes to either side are NaN, too. */
static ad_status find_slopes(ad_run *run, const double *saved, double h, double here, ad_constants *seen,
                             ad_slopes *out) {
  double above, below;
  AD_TRY(loss_at(run, saved, h, seen, &above));
  AD_TRY(loss_at(run, saved, -h, seen, &below));
  *out = (ad_slopes){(above - below) / (2 * h), (here - below) / h, (above - here) / h};
  return AD_OK;
}

/* Returns the error of the gradient's slope, where the loss may have a kink. The error is 0 if the loss has a kink and
 * the slope is between the slopes on both sides of it. At a kink these two slopes stay apart however small the step is;
 * the slopes of a smooth loss approach each other. */
static double error_beside_kinks(const ad_slopes *wide, const ad_slopes *near, double slope) {
  double error = fmin(ad_relative_difference(wide->central, slope), ad_relative_difference(near->central, slope));
  int is_kink = fabs(near->right - near->left) > 0.5 * fabs(wide->right - wide->left);
  int is_between = slope >= fmin(near->left, near->right) && slope <= fmax(near->left, near->right);
  return is_kink && is_between ? 0 : error;
}

/* Returns 1 if this rank's elements count. Of several ranks with the same elements only one counts. */
static int counts_here(const ad_array *array, int64_t rank) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (!ad_type_is_sharded(array->layout.type[axis]) && ad_mesh_position(array->layout.mesh, rank, (ad_axis)axis))
      return 0;
  return 1;
}

/* Computes <gradient, d>, with every distinct element once, summed over all ranks. */
static ad_status derivative(ad_comm *comm, ad_run *run, double *out) {
  int64_t rank = ad_comm_rank(comm);
  double sum = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
    if (!gradient) continue;
    ad_walk walk = {gradient, rank};
    if (!ad_array_numel(gradient) || !counts_here(gradient, rank)) continue;
    for (size_t j = 0; j < ad_array_numel(gradient); j++)
      sum += ((double *)gradient->data)[j] * direction_at(&walk, i, (int64_t)j);
  }
  ad_collective all = {.size = sizeof all,
                       .op = AD_ALL_REDUCE,
                       .group = ad_run_everyone(run),
                       .in = &sum,
                       .out = &sum,
                       .count = 1,
                       .dtype = AD_F64,
                       .site = AD_HERE};
  AD_TRY(ad_comm_run(comm, &all));
  *out = sum;
  return AD_OK;
}

/* The steps of the difference quotients. Parameters are of size 1/50 to 1; with WIDE the errors of truncation and of
 * cancellation are both below the bound. */
#define WIDE 1e-6
#define NEAR 1e-7

static ad_status measure_slopes(ad_run *run, int is_slope, ad_constants *seen, ad_slopes *wide, ad_slopes *near) {
  double *saved, here = NAN;
  AD_TRY(save_values(run, &saved));
  ad_status status = is_slope ? loss_at(run, saved, 0, seen, &here) : AD_OK;
  if (!status) status = find_slopes(run, saved, WIDE, here, seen, wide);
  if (!status && is_slope) status = find_slopes(run, saved, NEAR, here, seen, near);
  if (!status) status = set_values(run, saved, 0);
  ad_release(saved);
  return status;
}

ad_status ad_directional(ad_comm *comm, ad_run *run, const ad_check_job *job) {
  ad_check_result *result = job->result;
  ad_slopes wide = {0}, near = {0};
  double slope = 0;
  ad_constants *seen;
  char stopped[sizeof result->stopped] = "";
  AD_TRY(ad_new(1, &seen));
  seen->changed = stopped;
  seen->size = sizeof stopped;
  ad_status status = measure_slopes(run, job->is_slope, seen, &wide, &near);
  ad_release(seen);
  ad_step_report report;
  if (!status) status = ad_run_step(run, 0, &report);
  if (!status) status = derivative(comm, run, &slope);
  if (status || ad_comm_rank(comm) != 0) return status;
  result->difference = wide.central;
  result->derivative = slope;
  result->directional_err =
      job->is_slope ? error_beside_kinks(&wide, &near, slope) : ad_relative_difference(wide.central, slope);
  snprintf(result->stopped, sizeof result->stopped, "%s", stopped);
  result->counted = report.count;
  result->loss_dist = report.loss;
  result->norm_dist = report.norm;
  return AD_OK;
}
