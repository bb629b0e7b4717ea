/* The difference quotient (L(theta + h d) - L(theta - h d)) / 2h of the distributed loss against <gradient, d>, along
 * one random direction d. Elements of d are drawn by global index. Shares only the forward pass with what it proves. */
#include "check/directional.h"

#include <math.h>

#include "base/error.h"
#include "base/memory.h"
#include "addend/random.h"
#include "module/module.h"
#include "train/run.h"

enum { DIRECTION_SEED = 7 };

/* A rank's part of an array, to find where its elements lie in the whole value. */
typedef struct ad_walk {
  const ad_array *array;
  int64_t rank;
} ad_walk;

/* Global row-major index of the element with local row-major index `local`. */
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
      double d = h == 0 ? 0 : h * direction_at(&walk, i, (int64_t)j);
      ((double *)value->data)[j] = *saved++ + d;
    }
  }
  return ad_run_refresh(run, AD_VALUES_WRITTEN);
}

/* The central difference of the loss at steps h and -h along the direction. */
static ad_status difference_quotient(ad_run *run, const double *saved, double h, double *out) {
  double above, below;
  AD_TRY(set_values(run, saved, h));
  AD_TRY(ad_run_loss(run, 0, AD_TRAINED_ON, &above));
  AD_TRY(set_values(run, saved, -h));
  AD_TRY(ad_run_loss(run, 0, AD_TRAINED_ON, &below));
  AD_TRY(set_values(run, saved, 0));
  *out = (above - below) / (2 * h);
  return AD_OK;
}

/* Whether this rank's elements count: of several ranks with the same elements one counts. */
static int counts_here(const ad_array *array, int64_t rank) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (!ad_type_is_cut(array->layout.type[axis]) && ad_mesh_position(array->layout.mesh, rank, (ad_axis)axis))
      return 0;
  return 1;
}

/* <gradient, d>, with every distinct element once, summed over all ranks. */
static ad_status derivative(ad_comm *comm, ad_run *run, double *out) {
  int64_t rank = ad_comm_rank(comm);
  double sum = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++) {
    const ad_array *gradient = ad_run_part(run, i, AD_PART_GRADIENT);
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

ad_status ad_directional(ad_comm *comm, ad_run *run, ad_proof *proof) {
  double *saved, quotient = 0, slope = 0;
  AD_TRY(save_values(run, &saved));
  /* Parameters are of size 1/50 to 1; at h = 1e-6 errors of truncation and cancellation are both below the bound. */
  ad_status status = difference_quotient(run, saved, 1e-6, &quotient);
  ad_release(saved);
  ad_step_report report;
  if (!status) status = ad_run_step(run, 0, &report);
  if (!status) status = derivative(comm, run, &slope);
  if (status || ad_comm_rank(comm) != 0) return status;
  proof->difference = quotient;
  proof->derivative = slope;
  proof->directional_err = ad_relative_difference(quotient, slope);
  proof->counted = report.count;
  proof->loss_dist = report.loss;
  proof->norm_dist = report.norm;
  return AD_OK;
}
