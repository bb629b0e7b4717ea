/* Compares draws of one process in the recipe's own dtypes with one process in f64, and derives how far the ranks'
 * gradients may be off. A draw is one computation of the gradients, rounded differently each time (check/draws.h). */
#include "check/computing.h"

#include <math.h>

#include "base/memory.h"
#include "check/chance.h"
#include "check/result.h"
#include "base/roundoff.h"
#include "step/run.h"

/* Returns how far ranks may differ from one process. If ranks compute formulas in pieces, or if sums themselves round,
 * each rank rounds at other places, so its gradients are like another draw. If ranks share only the batch, and sums are
 * wider than the dtype to which they are rounded, ranks round the same values at the same places. Then results differ
 * only at the few values that are rounded the other way because a sum was made in another order. core/docs/dtypes.md
 * has measurements. */
static ad_latitude latitude_of(const ad_run *run, int shards_formulas) {
  int rounds_identically = ad_run_compute_dtype(run) == AD_BF16 && !shards_formulas;
  return rounds_identically ? (ad_latitude){1, 1, 0.3, 5} : (ad_latitude){2, 1, 1, INFINITY};
}

/* Returns the allowance for values that ranks round up and one process rounds down, or the reverse: their results are a
 * whole step of the communication dtype apart, and the ranks may have such values at other elements than one process.
 * The allowance is a third of `comm_rounding` (the norm of one process's roundings to communication dtypes) or, if that
 * is more, one such step in `numel` elements, which is sqrt(12 / numel) of `comm_rounding`. core/docs/dtypes.md has
 * measurements. */
static double flipped_roundings(double comm_rounding, double numel) {
  return comm_rounding * fmax(1.0 / 3, sqrt(12 / numel));
}

/* Returns how many numbers a check judges in a step: gradients, losses and their sum, norms, choices. The probability
 * of a false alarm is divided by this number. */
static double numbers_in_a_step(const ad_run *run) {
  return (double)ad_run_param_count(run) + AD_LOSSES_MAX + AD_NORM_GROUPS_MAX + 3;
}

static ad_status create_arrays(ad_computing *computing) {
  AD_TRY(ad_new(computing->count, &computing->norm));
  AD_TRY(ad_new(computing->count, &computing->comm_rounding));
  AD_TRY(ad_new(computing->count, &computing->sizes));
  AD_TRY(ad_new(computing->count, &computing->spread));
  AD_TRY(ad_new(computing->count, &computing->distance));
  AD_TRY(ad_new(computing->count, &computing->apart));
  return ad_new(computing->count, &computing->allowed);
}

ad_status ad_computing_create(const ad_run *run, int shards_formulas, int64_t steps, ad_computing *out) {
  ad_computing computing = {.count = ad_run_param_count(run), .latitude = latitude_of(run, shards_formulas)};
  computing.chance = AD_FALSE_ALARMS / ((double)steps * numbers_in_a_step(run));
  ad_status status = create_arrays(&computing);
  if (status)
    ad_computing_destroy(&computing);
  else
    *out = computing;
  return status;
}

void ad_computing_destroy(ad_computing *computing) {
  ad_release(computing->norm);
  ad_release(computing->comm_rounding);
  ad_release(computing->sizes);
  ad_release(computing->spread);
  ad_release(computing->distance);
  ad_release(computing->apart);
  ad_release(computing->allowed);
  *computing = (ad_computing){0};
}

/* ---- the spread of several draws in one process ---- */

enum { CONTRASTS = AD_DRAWS - 1 };

/* Sums over the elements of a vector: of the draws' squares, of their mean's square, and of the products of their
 * contrasts. A contrast (Helmert's) is a combination of draws in which everything that all draws share cancels. Each
 * contrast has one draw's variance and is independent of the other contrasts. */
typedef struct draw_sums {
  double squares, centre, products[CONTRASTS][CONTRASTS];
} draw_sums;

static void add_element(draw_sums *to, const double draw[AD_DRAWS]) {
  double contrast[CONTRASTS], sum = draw[0];
  to->squares += draw[0] * draw[0];
  for (int d = 1; d < AD_DRAWS; d++) {
    contrast[d - 1] = (sum - d * draw[d]) / sqrt(d * (d + 1.0));
    sum += draw[d];
    to->squares += draw[d] * draw[d];
  }
  to->centre += sum * sum / (AD_DRAWS * AD_DRAWS);
  for (int a = 0; a < CONTRASTS; a++)
    for (int b = 0; b <= a; b++) to->products[a][b] += contrast[a] * contrast[b];
}

static void add_draw_sums(draw_sums *to, const draw_sums *from, double factor) {
  to->squares += factor * from->squares;
  to->centre += factor * from->centre;
  for (int a = 0; a < CONTRASTS; a++)
    for (int b = 0; b <= a; b++) to->products[a][b] += factor * from->products[a][b];
}

/* Estimates the number of independent directions in which the draws vary. Contrasts of a vector that varies equally in
 * n directions have squared cosines of 1/n on average. */
static double freedom_by_angles(const draw_sums *of) {
  double products = 0, squares = 0;
  for (int a = 0; a < CONTRASTS; a++) {
    for (int b = 0; b < a; b++) {
      products += of->products[a][b] * of->products[a][b];
      squares += of->products[a][a] * of->products[b][b];
    }
  }
  return products > 0 ? squares / products : INFINITY;
}

/* Estimates the number of directions from the contrasts' squared norms: their variance is 2/n of their squared mean. */
static double freedom_by_norms(const draw_sums *of) {
  double mean = 0, variance = 0;
  for (int a = 0; a < CONTRASTS; a++) mean += of->products[a][a] / CONTRASTS;
  for (int a = 0; a < CONTRASTS; a++)
    variance += (of->products[a][a] - mean) * (of->products[a][a] - mean) / (CONTRASTS - 1);
  return variance > 0 ? 2 * mean * mean / variance : INFINITY;
}

/* Combines both estimates of the number of directions: half of the smaller one, since both come from few draws, but at
 * least 1. */
static double freedom_of(const draw_sums *of) {
  return fmin(fmax(1, fmin(freedom_by_angles(of), freedom_by_norms(of)) / 2), 1e6);
}

static ad_spread spread_of(const draw_sums *of) {
  ad_spread spread = {.error = sqrt(of->squares / AD_DRAWS), .centre = sqrt(of->centre)};
  double variance = 0;
  for (int a = 0; a < CONTRASTS; a++) variance += of->products[a][a] / CONTRASTS;
  spread.between = sqrt(variance);
  spread.freedom = freedom_of(of);
  spread.shared = sqrt(fmax(0, of->centre - variance / AD_DRAWS));
  return spread;
}

static draw_sums sum_param(const ad_draws *draws, size_t param, size_t numel) {
  draw_sums all = {0};
  for (size_t k = 0; k < numel; k++) {
    double draw[AD_DRAWS];
    for (int d = 0; d < AD_DRAWS; d++) draw[d] = ad_draws_deviation(draws, param, d)[k];
    add_element(&all, draw);
  }
  return all;
}

/* ---- measuring how far the ranks' values may be off ---- */

/* Returns t such that, with probability `chance`, one more sample is more than t standard deviations from the mean of
 * the samples so far. */
static double deviations(double chance, double freedom) {
  return sqrt(ad_ratio_of_chance(chance, freedom, CONTRASTS * freedom) * (1 + 1.0 / AD_DRAWS));
}

/* Returns how far the ranks' sum may be from the draws' mean: at most `most` standard deviations, and `shared` times
 * the error that all draws share. */
static double apart_of(const ad_computing *c, const ad_spread *spread, double shared, double most) {
  double drawn = fmin(deviations(c->chance, spread->freedom), most) * spread->between;
  return c->latitude.coarser * hypot(drawn, shared * spread->shared);
}

static double param_apart(const ad_computing *c, const ad_spread *spread) {
  return apart_of(c, spread, c->latitude.shared, INFINITY);
}

/* Returns the bound for all gradients together, which has a limit in standard deviations. If ranks and draws round
 * identically except for a few values, they vary in few directions, of which few draws say little. Without the limit
 * the bound would be so wide that mistakes pass. core/docs/dtypes.md has how far correct ranks were. */
static double all_apart(const ad_computing *c, const ad_spread *spread) {
  return apart_of(c, spread, c->latitude.shared_all, c->latitude.most_all);
}

/* Returns the distance of the ranks' sum from the mean of the draws. */
static double distance_to_mean(const ad_draws *draws, size_t param, const double *ref, const double *sum,
                               size_t numel) {
  double squares = 0;
  for (size_t k = 0; k < numel; k++) {
    double mean = 0;
    for (int d = 0; d < AD_DRAWS; d++) mean += ad_draws_deviation(draws, param, d)[k] / AD_DRAWS;
    squares += pow(sum[k] - ref[k] - mean, 2);
  }
  return sqrt(squares);
}

static double distance(const double *a, const double *b, size_t numel) {
  double squares = 0;
  for (size_t i = 0; i < numel; i++) squares += (a[i] - b[i]) * (a[i] - b[i]);
  return sqrt(squares);
}

/* Returns the least distance that is always allowed: each addend is rounded at least once, by the ranks and by one
 * process. In f64 it is at least the bound of the check in f64. */
static double least_apart(const ad_computing *c, const ad_run *run, size_t i) {
  double unit = ad_unit_roundoff(ad_dtype_wide(ad_run_compute_dtype(run)));
  return fmax(2 * unit * c->sizes[i], AD_WIDE_BOUND * c->norm[i]);
}

static draw_sums measure_param(ad_computing *c, size_t i, const ad_run *run, const ad_reference *reference,
                               const ad_addends *ranks) {
  const ad_array *ref = ad_reference_gradient(reference, i), *exact = ad_reference_exact_gradient(reference, i);
  const ad_draws *draws = ad_reference_draws(reference);
  size_t numel = ad_array_numel(ref);
  draw_sums all = sum_param(draws, i, numel);
  c->norm[i] = ad_norm_of(ref->data, numel);
  c->comm_rounding[i] = distance(ref->data, exact->data, numel);
  c->sizes[i] = ad_norm_of(ranks->sizes.full[i].data, numel);
  c->spread[i] = spread_of(&all);
  c->distance[i] = distance_to_mean(draws, i, ref->data, ranks->themselves.full[i].data, numel);
  c->apart[i] =
      param_apart(c, &c->spread[i]) + least_apart(c, run, i) + flipped_roundings(c->comm_rounding[i], (double)numel);
  c->allowed[i] = c->spread[i].centre + c->apart[i];
  return all;
}

static double over(double part, double full) { return part == 0 ? 0 : part / full; }

static void measure_all(ad_computing *c, const draw_sums *all, double distances, double least) {
  ad_spread spread = spread_of(all);
  c->all_distance = sqrt(distances);
  c->all_apart = all_apart(c, &spread) + sqrt(least);
}

/* Measures every parameter, then all gradients together. There each gradient has equal weight: it is divided by one
 * process's error in it, as are the allowances for communication dtypes and for the least roundings. */
void ad_computing_measure(ad_computing *c, const ad_run *run, const ad_reference *reference, const ad_addends *ranks) {
  draw_sums all = {0};
  double distances = 0, least = 0, allowed = 0, norms = 0;
  for (size_t i = 0; i < c->count; i++) {
    if (!ad_run_trains(run, i)) continue;
    draw_sums own = measure_param(c, i, run, reference, ranks);
    double error = c->spread[i].error;
    allowed += c->allowed[i] * c->allowed[i];
    norms += c->norm[i] * c->norm[i];
    if (error == 0) continue;
    double spared = c->apart[i] - param_apart(c, &c->spread[i]);
    add_draw_sums(&all, &own, 1 / (error * error));
    distances += pow(c->distance[i] / error, 2);
    least += pow(spared / error, 2);
  }
  measure_all(c, &all, distances, least);
  c->relative = over(sqrt(allowed), sqrt(norms));
}

/* ---- how far the ranks' losses may be off ---- */

/* Returns how far a loss may be off. A loss is one number, in which one process may be right by luck; this is unlikely
 * for all its gradients. So a loss may also be off by the relative error that all gradients may have. That error is
 * relative to the largest loss, since a small loss may be the sum of large addends that cancel (a metric of both signs,
 * the logarithm of a sum near 1), which ranks add in another order than one process. A loss of exactly 0 has no
 * addends. */
double ad_computing_of_loss(const ad_computing *computing, const double losses[AD_DRAWS], double reference,
                            double largest) {
  draw_sums all = {0};
  double draw[AD_DRAWS], size = reference != 0 ? fmax(largest, fabs(reference)) : 0;
  for (int d = 0; d < AD_DRAWS; d++) draw[d] = losses[d] - reference;
  add_element(&all, draw);
  ad_spread spread = spread_of(&all);
  return fmax(spread.centre + apart_of(computing, &spread, 1, INFINITY), computing->relative * size);
}
