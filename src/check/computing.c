/* One process in the recipe's own dtypes against the same in f64, and how much further many may be off. */
#include "check/computing.h"

#include <math.h>

#include "base/memory.h"
#include "check/proof.h"
#include "train/run.h"

/* Ranks that cut the batch alone compute each position as one process does, and only its sums in other orders. Where
 * formulas themselves are cut every rounding is another draw: docs/dtypes.md has how far draws lie apart. */
int ad_cuts_formulas(const ad_run *run) {
  ad_axes cut = 0;
  for (size_t i = 0; i < ad_run_param_count(run); i++)
    cut |= ad_mesh_large(ad_run_param_at(run, i).spec->layout.mesh) &
           ~(AD_AXES_DP | AD_AXES(AD_BLOCK) | AD_AXES(AD_EFSDP));
  return cut != 0;
}

static double factor_of(const ad_run *run) { return ad_cuts_formulas(run) ? 4 : 2; }

/* The part of one process's error by which many may differ from it. In bf16 the orders of sums, which are of f32, turn
 * few roundings; else an order of a sum is all that rounds. */
static double apart_of(const ad_run *run) {
  if (ad_cuts_formulas(run)) return 3;
  return ad_run_compute_dtype(run) == AD_BF16 ? 0.25 : 2;
}

/* What f32 puts on the other side of a rounding than f64 does arrives a whole step of the wire's dtype away. Of one
 * process's error that is a part, but the values may be others. Of `wires`, what roundings come to in all elements, one
 * such step is sqrt(12 / numel); docs/dtypes.md has how much it was. */
static double turned(double wires, double numel) { return wires * fmax(1.0 / 3, sqrt(12 / numel)); }

ad_status ad_computing_create(size_t count, ad_computing *out) {
  ad_computing computing = {.count = count};
  ad_status status = ad_new(count, &computing.norm);
  if (!status) status = ad_new(count, &computing.error);
  if (!status) status = ad_new(count, &computing.wires);
  if (!status) status = ad_new(count, &computing.allowed);
  if (!status) status = ad_new(count, &computing.apart);
  if (status)
    ad_computing_destroy(&computing);
  else
    *out = computing;
  return status;
}

void ad_computing_destroy(ad_computing *computing) {
  ad_release(computing->norm);
  ad_release(computing->error);
  ad_release(computing->wires);
  ad_release(computing->allowed);
  ad_release(computing->apart);
  *computing = (ad_computing){0};
}

static double distance(const double *a, const double *b, size_t numel) {
  double squares = 0;
  for (size_t i = 0; i < numel; i++) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return sqrt(squares);
}

/* Several parameters together. */
typedef struct together {
  double error, wires, norm, numel;
} together;

static int are_of_one_unit(const ad_run *run, size_t a, size_t b) {
  ad_run_param one = ad_run_param_at(run, a), other = ad_run_param_at(run, b);
  return one.module == other.module && one.spec->unit == other.spec->unit;
}

static double numel_of(const ad_run *run, size_t i) {
  return (double)ad_shape_numel(&ad_run_param_at(run, i).spec->shape);
}

/* Those of the unit of parameter i, or, its number being their count, all. */
static together sum(const ad_computing *c, const ad_run *run, size_t i) {
  together all = {0};
  for (size_t k = 0; k < c->count; k++) {
    if (i < c->count && !are_of_one_unit(run, i, k)) continue;
    all.error += c->error[k] * c->error[k];
    all.wires += c->wires[k] * c->wires[k];
    all.norm += c->norm[k] * c->norm[k];
    all.numel += numel_of(run, k);
  }
  all.error = sqrt(all.error);
  all.wires = sqrt(all.wires);
  all.norm = sqrt(all.norm);
  return all;
}

static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

/* Where f64 computes, nothing is held to be more exact than the proof in f64 promises. */
static double relative_error(together of) { return fmax(share(of.error, of.norm), AD_WIDE_BOUND); }

/* A parameter of few elements may be lucky, and one whose terms cancel (queries and keys, where a token sees only
 * itself) has the rounding of the terms: none is taken to be more exact than its unit, nor smaller than as many
 * elements of it. */
static double least_error(const ad_computing *c, const ad_run *run, size_t i) {
  together unit = sum(c, run, i);
  double norm = fmax(c->norm[i], unit.norm * sqrt(share(numel_of(run, i), unit.numel)));
  return relative_error(unit) * norm;
}

void ad_computing_measure(ad_computing *computing, const ad_run *run, const ad_reference *reference) {
  for (size_t i = 0; i < computing->count; i++) {
    const ad_array *ref = ad_reference_gradient(reference, i), *one = ad_reference_own_gradient(reference, i);
    const ad_array *exact = ad_reference_exact_gradient(reference, i);
    computing->norm[i] = ad_norm_of(ref->data, ad_array_numel(ref));
    computing->error[i] = distance(one->data, ref->data, ad_array_numel(ref));
    computing->wires[i] = distance(ref->data, exact->data, ad_array_numel(ref));
  }
  computing->factor = factor_of(run);
  for (size_t i = 0; i < computing->count; i++) {
    double error = fmax(computing->error[i], least_error(computing, run, i));
    double wires = turned(computing->wires[i], numel_of(run, i));
    computing->allowed[i] = computing->factor * error + wires;
    computing->apart[i] = apart_of(run) * error + wires;
  }
  together all = sum(computing, run, computing->count);
  computing->relative = relative_error(all);
  computing->turned = turned(share(all.wires, all.norm), all.numel);
}

double ad_computing_share(const ad_computing *computing, const ad_reference *reference, size_t i, const double *sum) {
  const ad_array *one = ad_reference_own_gradient(reference, i);
  double apart = distance(sum, one->data, ad_array_numel(one));
  if (apart == 0) return 0;
  return isfinite(apart) && computing->apart[i] > 0 ? apart / computing->apart[i] : INFINITY;
}
