/* Finds the causes that fit a parameter's numbers. The ratio to the reference, and the axes along which replicas
 * differ, show which reduction is missing, averaged or made twice. */
#include <math.h>
#include <stdio.h>

#include "check/result.h"
#include "program/program.h"
#include "mesh/mesh.h"

/* A bound that is above the largest error of a sum in bf16 or f16. */
static const double coarse_rounding = 0x1p-5;

/* Returns the limit below which an error counts as the rounding of a narrower dtype. In a check in f64 the limit is
 * 1e-6, since a mistake in a sum changes more than one part in a million; in the recipe's own dtypes the limit is what
 * dtypes of 16 bits round. */
static double rounding_limit(const ad_check_param *param) { return param->bound < 1e-9 ? 1e-6 : coarse_rounding; }

static int is_factor(double ratio, double factor) { return fabs(ratio - factor) <= 1e-6 * factor; }

static const char *print_axes(ad_axes axes) {
  static _Thread_local char names[80];
  return ad_axes_print(axes, names, sizeof names);
}

/* Adds the cause of a ratio that is the number of ranks over `axes`, or its inverse. Not all of these axes need be in
 * `reduced`, the axes over which the gradient is summed: along other axes ranks have other parts of the gradient. */
static void add_axes(ad_axes axes, ad_axes reduced, double ratio, ad_causes *causes) {
  int summed = !(axes & ~reduced);
  const char *names = print_axes(axes);
  if (ratio < 1)
    ad_causes_add(causes, AD_CAUSE_AVERAGED, axes, ratio,
                  "averaged, or divided by a count that was summed twice, over %s%s", names,
                  summed ? "" : ", although its sum is not over all of these axes");
  else
    ad_causes_add(causes, AD_CAUSE_DOUBLED, axes, ratio, "%s over %s",
                  summed ? "summed twice, or divided by a local count," : "not divided by the number of ranks", names);
}

/* Adds a cause for every set of axes whose number of ranks is `ratio` or its inverse. Sets of few axes come first, and
 * among sets of equally many axes those over which the gradient is summed. If several sets have equally many ranks, the
 * factor does not show which of them is the cause. */
static void add_factor(const ad_mesh *mesh, ad_axes reduced, double ratio, ad_causes *causes) {
  ad_axes large = ad_mesh_large(mesh);
  for (int count = 1; count <= __builtin_popcount(large); count++)
    for (int summed = 1; summed >= 0; summed--)
      for (ad_axes axes = 1; axes <= large; axes++) {
        double size = (double)ad_mesh_ranks_over(mesh, axes);
        if (axes & ~large || __builtin_popcount(axes) != count || (!(axes & ~reduced)) != summed) continue;
        if (is_factor(ratio, ratio < 1 ? 1 / size : size)) add_axes(axes, reduced, ratio, causes);
      }
  if (!causes->count)
    ad_causes_add(causes, AD_CAUSE_UNKNOWN, 0, ratio, "%.*g times the reference: a factor that is no group's size",
                  fabs(ratio - 1) < 1e-4 ? 12 : 6, ratio)
        ->no_axis = AD_NO_AXIS_NO_GROUP;
}

void ad_diagnose_parts(ad_axes differs, ad_causes *causes) {
  causes->count = 0;
  ad_causes_add(causes, AD_CAUSE_PARTIAL, differs, NAN,
                "not reduced over %s: each replica holds only a part of the sum", print_axes(differs));
}

/* Adds the cause of replicas that differ. If first_holds is 1, the first rank's replica is right: the sum was made, and
 * another replica was changed. */
static void add_replicas(ad_axes differs, int64_t odd_rank, int first_holds, ad_causes *causes) {
  if (odd_rank >= 0)
    ad_causes_add(causes, AD_CAUSE_REPLICAS_DIFFER, differs, NAN, "the replica of rank %lld differs from all others",
                  (long long)odd_rank);
  else if (first_holds)
    ad_causes_add(causes, AD_CAUSE_REPLICAS_DIFFER, differs, NAN,
                  "replicas differ along %s, although the replica of the first rank is right", print_axes(differs));
  else
    ad_causes_add(causes, AD_CAUSE_REPLICAS_DIFFER, differs, NAN,
                  "replicas differ along %s and are not parts of one sum: they were reduced over other ranks, or only "
                  "in part, or from other gradients, or were changed afterwards",
                  print_axes(differs));
}

static int is_of_factor(const ad_causes *causes) {
  const ad_cause *first = &causes->list[0];
  return causes->count && isfinite(first->factor) && first->kind != AD_CAUSE_MISSING;
}

/* Adds a cause for each other module whose number of data-parallel ranks explains the factor: the gradient was averaged
 * over `axes` of its own ranks, and multiplied by the data-parallel ranks of that module. */
static void add_averages(const ad_program *program, size_t module, const ad_mesh *mesh, ad_axes axes, double factor,
                         ad_causes *causes) {
  int64_t averaged = ad_mesh_ranks_over(mesh, axes);
  for (size_t m = 0; m < ad_program_module_count(program); m++) {
    const ad_module_spec *other = ad_program_module(program, m);
    int64_t times = ad_mesh_ranks_over(other->mesh, AD_AXES_DP);
    if (m == module || times == 1 || times == averaged || !is_factor(factor, (double)times / (double)averaged))
      continue;
    if (causes->list[0].kind == AD_CAUSE_UNKNOWN) causes->count = 0;
    ad_cause *cause = ad_causes_add(causes, AD_CAUSE_AVERAGED, axes, factor,
                                    "averaged over %s (%lld), and multiplied by the ranks of `%s` (%lld)",
                                    print_axes(axes), (long long)averaged, other->name, (long long)times);
    snprintf(cause->place, sizeof cause->place, "%s", other->name);
  }
}

void ad_diagnose_averages(const ad_program *program, size_t module, const ad_mesh *mesh, ad_axes reduced,
                          ad_causes *causes) {
  double factor = causes->list[0].factor;
  ad_axes data = reduced & AD_AXES_DP; /* a job may also average over only the axes that shard the batch */
  if (!reduced || !is_of_factor(causes)) return;
  add_averages(program, module, mesh, reduced, factor, causes);
  if (data && data != reduced) add_averages(program, module, mesh, data, factor, causes);
}

static int names_stages(const ad_causes *causes) {
  for (int i = 0; i < causes->count; i++)
    if (causes->list[i].axes == AD_AXES(AD_PP)) return 1;
  return 0;
}

void ad_diagnose_stages(ad_check_result *result, int64_t stages) {
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    if (param->reached && !(param->proportional && is_factor(param->ratio, 1 / (double)stages))) return;
  }
  for (size_t i = 0; i < result->param_count; i++) {
    ad_check_param *param = &result->params[i];
    if (!param->reached || names_stages(&param->causes)) continue;
    ad_causes_add(&param->causes, AD_CAUSE_AVERAGED, AD_AXES(AD_PP), param->ratio,
                  "every gradient is divided by %lld: averaged over the stages (pp) as well, although each stage has "
                  "other parameters",
                  (long long)stages);
  }
}

void ad_diagnose_update(ad_causes *causes) {
  causes->count = 0;
  ad_causes_add(causes, AD_CAUSE_UNKNOWN, 0, NAN,
                "the gradient is right, but its update is not the update of one process")
      ->no_axis = AD_NO_AXIS_REPLICAS_AGREE;
}

void ad_diagnose_frozen(int64_t rank, ad_axes differs, ad_causes *causes) {
  causes->count = 0;
  if (rank >= 0)
    ad_causes_add(causes, AD_CAUSE_UNKNOWN, 0, NAN, "it is frozen, but the step changed its value on rank %lld",
                  (long long)rank)
        ->no_axis = AD_NO_AXIS_REPLICAS_AGREE;
  else
    ad_causes_add(causes, AD_CAUSE_REPLICAS_DIFFER, differs, NAN,
                  "it is frozen, and its replicas differ along %s although no step changed them", print_axes(differs));
}

void ad_diagnose_shards(ad_axes axes, ad_causes *causes) {
  causes->count = 0;
  ad_causes_add(causes, AD_CAUSE_WRONG_GROUP, axes, NAN,
                "wrong group: summed over %s as well, along which ranks hold different elements", print_axes(axes));
}

void ad_diagnose_updates(ad_axes differs, int64_t odd_rank, ad_causes *causes) {
  char where[96];
  if (odd_rank >= 0)
    snprintf(where, sizeof where, "the update of rank %lld differs from all others", (long long)odd_rank);
  else
    snprintf(where, sizeof where, "the update differs along %s", print_axes(differs));
  causes->count = 0;
  ad_causes_add(causes, AD_CAUSE_REPLICAS_DIFFER, differs, NAN,
                "the gradient is right on every rank, but %s: the norm, a learning rate or an optimizer state differs",
                where);
}

/* Adds causes of a sum that is wrong in the same way on all ranks: wrong addends or, if the error is small, rounding to
 * 16 bits. */
static void add_wrong_sum(const ad_check_param *param, ad_causes *causes) {
  ad_causes_add(causes, AD_CAUSE_MISSING, 0, param->ratio,
                "all replicas are the same and wrong: addends are missing, counted with other weights, or computed "
                "from other data")
      ->no_axis = AD_NO_AXIS_REPLICAS_AGREE;
  if (param->max_rel_err < coarse_rounding)
    ad_causes_add(causes, AD_CAUSE_ROUNDING, 0, NAN, "rounded to 16 bits, or summed in them");
}

/* Adds causes for replicas that agree, but are not a multiple of the reference. */
static void add_error(const ad_check_param *param, ad_causes *causes) {
  if (!isfinite(param->max_rel_err))
    ad_causes_add(causes, AD_CAUSE_UNKNOWN, 0, NAN, "a value is not a finite number");
  else if (param->max_rel_err < rounding_limit(param))
    ad_causes_add(causes, AD_CAUSE_ROUNDING, 0, NAN, "differs by rounding only: %s",
                  param->sum_share > 1 ? "its addends are summed in a narrower dtype than its precision policy says"
                  : param->process_share > 1 ? "it is computed in a narrower dtype than in one process"
                                             : "a narrower dtype or another order of the sum");
  else
    add_wrong_sum(param, causes);
}

void ad_diagnose(const ad_mesh *mesh, ad_axes reduced, const ad_check_param *param, int proportional, ad_axes differs,
                 int64_t odd_rank, ad_causes *out) {
  out->count = 0;
  if (!param->replicas_equal) {
    add_replicas(differs, odd_rank, ad_param_share(param) <= 1, out);
  } else if (ad_param_share(param) <= 1) {
    if (!param->update_equal) ad_diagnose_update(out);
  } else if (proportional && param->max_rel_err >= 1e-6) {
    add_factor(mesh, reduced, param->ratio, out);
  } else {
    add_error(param, out);
  }
}
