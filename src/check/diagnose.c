/* From numbers to a likely cause: which reduction is missing, averaged or done twice, told from the ratio and from
 * where the replicas differ. */
#include <math.h>
#include <stdio.h>

#include "check/proof.h"

static const char *const cause_names[] = {
    [AD_CAUSE_NONE] = "none",         [AD_CAUSE_AVERAGED] = "averaged",
    [AD_CAUSE_MISSING] = "missing",   [AD_CAUSE_DOUBLED] = "doubled",
    [AD_CAUSE_PARTIAL] = "partial",   [AD_CAUSE_WRONG_GROUP] = "wrong_group",
    [AD_CAUSE_ROUNDING] = "rounding", [AD_CAUSE_REPLICAS_DIFFER] = "replicas_differ",
    [AD_CAUSE_UNKNOWN] = "unknown",
};

const char *ad_cause_name(ad_cause_kind kind) { return cause_names[kind]; }

static double group_size(const ad_mesh *mesh, ad_axes axes) {
  double size = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis)) size *= (double)ad_mesh_axis_size(mesh, (ad_axis)axis);
  return size;
}

static int is_factor(double ratio, double factor) { return fabs(ratio - factor) <= 1e-6 * factor; }

/* The smallest set of reduced axes of which `ratio` is the size (times) or its inverse (divided); 0 if there is none.
 */
static ad_axes axes_of_factor(const ad_mesh *mesh, ad_axes reduced, double ratio, int inverse) {
  ad_axes best = 0;
  for (ad_axes axes = reduced; axes; axes = (axes - 1) & reduced) {
    double size = group_size(mesh, axes);
    if (size <= 1 || !is_factor(ratio, inverse ? 1 / size : size)) continue;
    if (!best || __builtin_popcount(axes) <= __builtin_popcount(best)) best = axes;
  }
  return best;
}

static ad_cause cause_of_kind(ad_cause_kind kind, ad_axes axes, double factor) {
  return (ad_cause){.kind = kind, .axes = axes, .factor = factor};
}

static ad_cause cause_of_replicas(const ad_mesh *mesh, ad_axes differs, int64_t odd_rank) {
  ad_cause cause = cause_of_kind(odd_rank >= 0 ? AD_CAUSE_REPLICAS_DIFFER : AD_CAUSE_PARTIAL, differs, NAN);
  char names[80];
  ad_axes_print(differs, names, sizeof names);
  if (odd_rank >= 0)
    snprintf(cause.text, sizeof cause.text, "rank %lld's copy differs from all others", (long long)odd_rank);
  else
    snprintf(cause.text, sizeof cause.text, "not reduced over `%s`: each copy holds a part of the sum", names);
  return cause;
}

static ad_cause cause_of_factor(const ad_mesh *mesh, ad_axes reduced, double ratio) {
  char names[80];
  ad_axes divided = axes_of_factor(mesh, reduced, ratio, 1), times = axes_of_factor(mesh, reduced, ratio, 0);
  ad_cause cause = cause_of_kind(AD_CAUSE_UNKNOWN, 0, ratio);
  if (divided) {
    cause = cause_of_kind(AD_CAUSE_AVERAGED, divided, ratio);
    snprintf(cause.text, sizeof cause.text, "averaged over %s", ad_axes_print(divided, names, sizeof names));
  } else if (times) {
    cause = cause_of_kind(AD_CAUSE_DOUBLED, times, ratio);
    snprintf(cause.text, sizeof cause.text, "summed twice, or never divided by the count of all ranks, over %s",
             ad_axes_print(times, names, sizeof names));
  } else {
    snprintf(cause.text, sizeof cause.text, "%.6g times the reference: a factor that is no group's size", ratio);
  }
  return cause;
}

ad_cause ad_diagnose(const ad_mesh *mesh, ad_axes reduced, const ad_proof_param *param, int proportional,
                     ad_axes differs, int64_t odd_rank) {
  if (param->replicas_equal && param->max_rel_err <= param->bound) return cause_of_kind(AD_CAUSE_NONE, 0, NAN);
  if (!param->replicas_equal) return cause_of_replicas(mesh, differs, odd_rank);
  if (proportional) return cause_of_factor(mesh, reduced, param->ratio);
  ad_cause cause = cause_of_kind(AD_CAUSE_UNKNOWN, 0, NAN);
  if (!isfinite(param->max_rel_err)) {
    snprintf(cause.text, sizeof cause.text, "a value is not a finite number");
  } else if (param->max_rel_err < 1e-6) {
    cause.kind = AD_CAUSE_ROUNDING;
    snprintf(cause.text, sizeof cause.text, "differs by rounding only: a narrower dtype or another order of the sum");
  } else {
    cause.kind = AD_CAUSE_MISSING;
    cause.factor = param->ratio;
    snprintf(cause.text, sizeof cause.text,
             "all copies agree and are wrong: addends are missing, counted with other weights, or of other data");
  }
  return cause;
}
