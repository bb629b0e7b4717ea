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

/* Errors below this are taken for those of a narrower dtype: a mistake in a sum changes more than one part in a
 * million. Where the contract itself rounds, a narrower dtype than it promises does not hide below that. */
static double rounding_limit(const ad_proof_param *param) { return param->bound < 1e-9 ? 1e-6 : 0x1p-5; }

const char *ad_cause_name(ad_cause_kind kind) { return cause_names[kind]; }

static int is_factor(double ratio, double factor) { return fabs(ratio - factor) <= 1e-6 * factor; }

/* The smallest sets of reduced axes of which `ratio` is the size (times) or its inverse (divided): the last of them in
 * the order of the axes, and how many there are. Axes of one size cannot be told apart by a factor. */
static ad_axes axes_of_factor(const ad_mesh *mesh, ad_axes reduced, double ratio, int inverse, int *candidates) {
  ad_axes best = 0;
  *candidates = 0;
  for (ad_axes axes = reduced; axes; axes = (axes - 1) & reduced) {
    double size = (double)ad_mesh_ranks_over(mesh, axes);
    int count = __builtin_popcount(axes), fewest = __builtin_popcount(best);
    if (size <= 1 || !is_factor(ratio, inverse ? 1 / size : size) || (best && count > fewest)) continue;
    *candidates = best && count == fewest ? *candidates + 1 : 1;
    if (!best || count < fewest) best = axes;
  }
  return best;
}

static ad_cause cause_of_kind(ad_cause_kind kind, ad_axes axes, double factor) {
  return (ad_cause){.kind = kind, .axes = axes, .factor = factor};
}

/* `first_holds`: the first rank's copy is right, so the sum was made and another copy went astray. */
static ad_cause cause_of_replicas(ad_axes differs, int64_t odd_rank, int first_holds) {
  int partial = odd_rank < 0 && !first_holds;
  ad_cause cause = cause_of_kind(partial ? AD_CAUSE_PARTIAL : AD_CAUSE_REPLICAS_DIFFER, differs, NAN);
  char names[80];
  ad_axes_print(differs, names, sizeof names);
  if (partial)
    snprintf(cause.text, sizeof cause.text, "not reduced over %s: each copy holds a part of the sum", names);
  else if (odd_rank >= 0)
    snprintf(cause.text, sizeof cause.text, "rank %lld's copy differs from all others", (long long)odd_rank);
  else
    snprintf(cause.text, sizeof cause.text, "copies differ along %s although the first is right", names);
  return cause;
}

static void say_factor(ad_cause *cause, const char *what, int candidates) {
  char names[80];
  snprintf(cause->text, sizeof cause->text, "%s over %s%s", what, ad_axes_print(cause->axes, names, sizeof names),
           candidates > 1 ? ", or over another axis of its size" : "");
}

static ad_cause cause_of_factor(const ad_mesh *mesh, ad_axes reduced, double ratio) {
  int candidates;
  ad_cause cause = cause_of_kind(AD_CAUSE_AVERAGED, axes_of_factor(mesh, reduced, ratio, 1, &candidates), ratio);
  if (cause.axes) return say_factor(&cause, "averaged", candidates), cause;
  cause = cause_of_kind(AD_CAUSE_DOUBLED, axes_of_factor(mesh, reduced, ratio, 0, &candidates), ratio);
  if (cause.axes) return say_factor(&cause, "summed twice, or divided by a local count,", candidates), cause;
  /* Over axes that hold other parts of the gradient nothing is summed, but tokens come from there. */
  cause.axes = axes_of_factor(mesh, ad_mesh_large(mesh) & ~reduced, ratio, 0, &candidates);
  if (cause.axes) return say_factor(&cause, "divided by too few ranks: by none", candidates), cause;
  cause.kind = AD_CAUSE_UNKNOWN;
  snprintf(cause.text, sizeof cause.text, "%.6g times the reference: a factor that is no group's size", ratio);
  return cause;
}

void ad_diagnose_averages(const ad_program *program, size_t module, const ad_mesh *mesh, ad_axes reduced,
                          ad_cause *cause) {
  int64_t averaged = ad_mesh_ranks_over(mesh, reduced);
  char axes[80];
  if (cause->kind != AD_CAUSE_UNKNOWN || !reduced) return;
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *other = ad_program_module(program, m);
    int64_t times = ad_mesh_ranks_over(other->mesh, AD_AXES_DP);
    if (m == module || times == 1 || times == averaged || !is_factor(cause->factor, (double)times / (double)averaged))
      continue;
    *cause = cause_of_kind(AD_CAUSE_AVERAGED, reduced, cause->factor);
    snprintf(cause->text, sizeof cause->text, "averaged over %s (%lld), and multiplied by the ranks of `%s` (%lld)",
             ad_axes_print(reduced, axes, sizeof axes), (long long)averaged, other->name, (long long)times);
    return;
  }
}

ad_cause ad_cause_of_update(void) {
  ad_cause cause = cause_of_kind(AD_CAUSE_UNKNOWN, 0, NAN);
  snprintf(cause.text, sizeof cause.text, "the gradient is right, its update is not that of one process");
  return cause;
}

ad_cause ad_diagnose(const ad_mesh *mesh, ad_axes reduced, const ad_proof_param *param, int proportional,
                     ad_axes differs, int64_t odd_rank) {
  if (param->replicas_equal && ad_param_share(param) <= 1)
    return param->update_equal ? cause_of_kind(AD_CAUSE_NONE, 0, NAN) : ad_cause_of_update();
  if (!param->replicas_equal) return cause_of_replicas(differs, odd_rank, ad_param_share(param) <= 1);
  if (proportional && param->max_rel_err >= 1e-6) return cause_of_factor(mesh, reduced, param->ratio);
  ad_cause cause = cause_of_kind(AD_CAUSE_UNKNOWN, 0, NAN);
  if (!isfinite(param->max_rel_err)) {
    snprintf(cause.text, sizeof cause.text, "a value is not a finite number");
  } else if (param->max_rel_err < rounding_limit(param)) {
    cause.kind = AD_CAUSE_ROUNDING;
    snprintf(cause.text, sizeof cause.text, "differs by rounding only: %s",
             param->sum_share > 1       ? "its addends are summed in a narrower dtype than its contract says"
             : param->process_share > 1 ? "it is computed in a narrower dtype than in one process"
                                        : "a narrower dtype or another order of the sum");
  } else {
    cause.kind = AD_CAUSE_MISSING;
    cause.factor = param->ratio;
    snprintf(cause.text, sizeof cause.text,
             "all copies agree and are wrong: addends are missing, counted with other weights, or of other data");
  }
  return cause;
}
