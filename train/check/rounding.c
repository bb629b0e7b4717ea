/* A model of rounding: to which dtypes an addend is rounded on its way into the gradient, and how often. The model
 * knows only the precision policy, the number of microbatches and the sizes of groups; it does not know how the reducer
 * works. */
#include "check/rounding.h"

#include <math.h>

#include "base/roundoff.h"
#include "check/result.h"
#include "mesh/mesh.h"
#include "recipe/leaves.h"
#include "reduce/plan.h"

/* Returns the largest error of rounding a value below the dtype's normal range: half of the dtype's smallest number.
 * Half of f64's smallest number cannot be represented, so for f64 it is the smallest number itself. */
static double half_of_smallest(ad_dtype dtype) { return fmax(ad_smallest_number(dtype) / 2, 0x1p-1074); }

/* The roundings and sums that an addend passes on its way into the gradient. */
typedef struct ad_passage {
  ad_precision_policy policy;
  ad_dtype produced; /* the dtype in which the backward pass makes the addend */
  double members[AD_AXIS_COUNT];
  int steps;
  double microbatches;
  int sums_first; /* 1: addends of microbatches are summed before the first reduction */
} ad_passage;

static void find_steps(const ad_param_spec *spec, ad_passage *out) {
  ad_layout gradient = ad_layout_dual(&spec->layout);
  ad_path_step steps[AD_AXIS_COUNT];
  int early;
  if (ad_gradient_path(&gradient, &spec->storage, ad_param_update(spec), steps, &out->steps, &early)) out->steps = 0;
  for (int i = 0; i < out->steps; i++) out->members[i] = (double)ad_mesh_ranks_over(spec->layout.mesh, steps[i].axes);
}

static ad_passage passage_of(const ad_recipe *recipe, const ad_recipe_sharding *sharding, const ad_param_spec *spec) {
  ad_dtype produced = ad_dtype_wide(recipe->precision.compute);
  ad_passage passage = {.policy = spec->policy, .produced = produced};
  if (passage.policy.raw) passage.policy.grad = produced;
  passage.microbatches = (double)ad_recipe_rounds(recipe);
  for (size_t m = 0; m + 1 < recipe->train.sync_count; m++)
    passage.sums_first |=
        sharding->sync[m] != AD_SYNC_ALL && (sharding->sync[m] == AD_SYNC_NONE || sharding->zero == 0);
  find_steps(spec, &passage);
  return passage;
}

/* Returns how often a value is rounded when it is written in the communication dtype: once for each reduction. The
 * first reduction does not count if it writes single addends to a dtype that can represent them exactly. */
static double rounded_writes(const ad_passage *p) {
  int first_is_exact = p->steps && !p->sums_first && ad_dtype_holds(p->policy.reduce, p->policy.grad);
  return (double)(p->steps - first_is_exact);
}

/* Returns the most additions in which an addend takes part: with the members of each group, and with other microbatches
 * before the first reduction and after each. */
static double additions(const ad_passage *p) {
  double count = (double)(p->steps + 1) * (p->microbatches - 1);
  for (int i = 0; i < p->steps; i++) count += p->members[i] - 1;
  return count;
}

/* Returns the bound of the relative error: the product of all roundings that an addend passes. */
static double relative_of(const ad_passage *p, ad_dtype result) {
  const ad_precision_policy *c = &p->policy;
  double grad = ad_dtype_holds(c->grad, p->produced) ? 0 : log1p(ad_unit_roundoff(c->grad));
  double comm_dtype = rounded_writes(p) * log1p(ad_unit_roundoff(c->reduce));
  double sums = additions(p) * log1p(ad_unit_roundoff(c->accumulate));
  double out = ad_dtype_holds(result, c->accumulate) ? 0 : (double)(p->steps + 1) * log1p(ad_unit_roundoff(result));
  return expm1(grad + comm_dtype + sums + out);
}

/* Returns the bound of the absolute error of values below a dtype's normal range. A value that is sent is scaled by
 * 2^-k, where 2^k is at least the number of addends in it; `microbatches * ahead` such values are added into one
 * element. */
static double absolute_of(const ad_passage *p) {
  double behind = p->microbatches, ahead = 1, sum = 0;
  for (int i = 0; i < p->steps; i++) ahead *= p->members[i];
  sum += p->microbatches * ahead * half_of_smallest(p->policy.grad);
  for (int i = 0; i < p->steps; i++) {
    behind *= p->members[i];
    sum += p->microbatches * ahead * half_of_smallest(p->policy.reduce) * exp2(ceil(log2(behind)));
    ahead /= p->members[i];
  }
  return sum;
}

ad_allowance ad_rounding_allowance(const ad_recipe *recipe, const ad_recipe_sharding *sharding,
                                   const ad_param_spec *spec, ad_dtype result, int loss_scale) {
  ad_passage passage = passage_of(recipe, sharding, spec);
  return (ad_allowance){relative_of(&passage, result), ldexp(absolute_of(&passage), -loss_scale)};
}

/* ---- judging elements by the model ---- */

/* A gradient, its reference, and the sums of its addends' absolute values, which determine how much each element may be
 * off. */
typedef struct ad_judged {
  const double *dist, *ref, *sums;
  size_t numel;
  ad_allowance allowance;
} ad_judged;

static double allowed_at(const ad_judged *g, size_t i) {
  return g->allowance.relative * g->sums[i] + g->allowance.absolute;
}

/* Returns the norm, over all elements, of how far differences exceed `share` times the element's allowance. */
static double excess(const ad_judged *g, double share) {
  double squares = 0;
  for (size_t i = 0; i < g->numel; i++) {
    double difference = fabs(g->dist[i] - g->ref[i]), allowed = share * allowed_at(g, i);
    if (!(difference <= allowed)) squares += (difference - allowed) * (difference - allowed);
  }
  return sqrt(squares);
}

static double norm_of_allowed(const ad_judged *g) {
  double squares = 0;
  for (size_t i = 0; i < g->numel; i++) squares += allowed_at(g, i) * allowed_at(g, i);
  return sqrt(squares);
}

static int is_within(const ad_judged *g, double share, double computing) {
  return excess(g, share) <= share * computing;
}

/* Returns, by bisection, the smallest factor of both allowances (that of each element, and `computing`) with which the
 * gradient passes; NaN if there is none. */
static double share_of(const ad_judged *g, double computing) {
  enum { DOUBLINGS = 64, HALVINGS = 24 };
  double least = 0, share = 1;
  for (int i = 0; i < DOUBLINGS && !is_within(g, share, computing); i++) least = share, share *= 2;
  if (!is_within(g, share, computing)) return NAN;
  for (int i = 0; i < HALVINGS; i++) {
    double middle = (least + share) / 2;
    if (is_within(g, middle, computing))
      share = middle;
    else
      least = middle;
  }
  return share;
}

ad_error ad_measure_error(const double *dist, const double *ref, const double *sums, size_t numel,
                          ad_allowance allowance, double computing) {
  ad_judged judged = {dist, ref, sums, numel, allowance};
  ad_error error = {.norm = excess(&judged, 0), .reduced = norm_of_allowed(&judged)};
  error.share = error.norm == 0 ? 0 : share_of(&judged, computing);
  return error;
}
