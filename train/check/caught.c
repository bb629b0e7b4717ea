/* Says of a proof that failed with a mistake planted which number caught the mistake: the parameter that shows it best,
 * its causes, or what else failed; and of a mistake that only rounds whether it must be caught. */
#include <math.h>
#include <stdio.h>

#include "check/computing.h"
#include "check/sabotage.h"

static double error_of(const ad_proof_param *param) {
  double share = ad_param_share(param);
  return isnan(share) || isnan(param->ratio) ? INFINITY : share;
}

/* The parameter that shows the mistake best: one with unequal replicas before others, then the one with the largest
 * error. */
static const ad_proof_param *worst_param(const ad_proof *proof) {
  const ad_proof_param *worst = NULL;
  for (size_t i = 0; i < proof->param_count; i++) {
    const ad_proof_param *param = &proof->params[i];
    if (param->replicas_equal && param->update_equal && error_of(param) <= 1) continue;
    if (!worst || param->replicas_equal < worst->replicas_equal ||
        (param->replicas_equal == worst->replicas_equal && error_of(param) > error_of(worst)))
      worst = param;
  }
  return worst;
}

static int gradients_hold(const ad_proof *proof) {
  for (size_t i = 0; i < proof->param_count; i++)
    if (error_of(&proof->params[i]) > 1) return 0;
  return 1;
}

/* Names what failed where no gradient did. */
static void say_what_failed(const ad_proof *proof, ad_sabotage *sabotage) {
  char *text = sabotage->message;
  size_t size = sizeof sabotage->message;
  if (!(proof->norm_err <= proof->norm_bound))
    snprintf(text, size, "all gradients are right, and their norm is off by %.2g", proof->norm_err);
  else if (*proof->reports)
    snprintf(text, size, "all gradients are right; %s", proof->reports);
  else if (!(proof->loss_err <= proof->loss_bound))
    snprintf(text, size, "all gradients are right, and a loss is off by %.2g", proof->loss_err);
  else if (*proof->calls)
    snprintf(text, size, "all gradients are right, and the step's collectives are not those of its plan: %s",
             proof->calls);
}

void ad_caught_by_number(const ad_proof *proof, ad_sabotage *sabotage) {
  sabotage->caught = AD_CAUGHT_NUMBER;
  sabotage->loss_err = proof->loss_err;
  const ad_proof_param *param = worst_param(proof);
  if (!param || (proof->norm_causes.count && gradients_hold(proof))) {
    say_what_failed(proof, sabotage);
    snprintf(sabotage->param, sizeof sabotage->param, "%s", proof->norm_param);
    ad_causes_copy(&sabotage->causes, &proof->norm_causes);
    return;
  }
  if (gradients_hold(proof)) snprintf(sabotage->message, sizeof sabotage->message, "%s", proof->reports);
  snprintf(sabotage->param, sizeof sabotage->param, "%s", param->name);
  sabotage->ratio = param->ratio;
  ad_causes_copy(&sabotage->causes, &param->causes);
}

/* ---- a mistake that only rounds, and that the proof passed ---- */

/* By how much the mistake moved gradients, over what their own roundings do: one process's error in the recipe's own
 * dtypes, and that of wires. Root mean square over the parameters. Both are measured, and depend on no bound. */
static double moved_over_roundings(const ad_computing *computing, const double *moved) {
  double squares = 0;
  for (size_t i = 0; i < computing->count; i++)
    if (moved[i] != 0) squares += pow(moved[i] / hypot(computing->spread[i].error, computing->wires[i]), 2);
  return sqrt(squares / (double)computing->count);
}

/* Where sums are short, a mistake that rounds more often moves gradients by less than the roundings of the right program
 * do, for which every bound has room: in a custom program it has no effect if it moves them by less than `within` of
 * these. (core/docs/dtypes.md has measurements; ranks that compute in pieces differ from one process by all of their own
 * roundings.) A mistake that moves gradients by more survives, since a bound that it passes is too wide. In addend's own
 * programs all sums are long enough. */
void ad_caught_by_rounding(const ad_proof *proof, const ad_computing *computing, const double *moved, int cuts_formulas,
                           ad_sabotage *sabotage) {
  double share = 0, within = cuts_formulas ? 1 : 0.5;
  for (size_t i = 0; i < proof->param_count; i++) share = fmax(share, ad_param_share(&proof->params[i]));
  sabotage->moved = moved_over_roundings(computing, moved);
  if (sabotage->moved < within) sabotage->caught = AD_CAUGHT_NO_EFFECT;
  snprintf(
      sabotage->message, sizeof sabotage->message,
      "it only rounds, and moves gradients by %.2g of what the program's own roundings move them (from %g on it must "
      "show); gradients reach %.2g of their bounds, and all together %.2g",
      sabotage->moved, within, share, proof->process_share);
}
