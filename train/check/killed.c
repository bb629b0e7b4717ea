/* Reports which number killed a mutant whose check failed: the parameter that shows the mutation best, and its causes,
 * or what else failed. Also decides whether a mutant that only rounds should have been killed. */
#include <math.h>
#include <stdio.h>

#include "check/computing.h"
#include "check/mutants.h"

static double error_of(const ad_check_param *param) {
  if (param->frozen) return 0;
  double share = ad_param_share(param);
  return isnan(share) || isnan(param->ratio) ? INFINITY : share;
}

/* Returns the parameter that shows the mutation best: one with unequal replicas if there is any, else the one with the
 * largest error; NULL if all parameters are right. */
static const ad_check_param *worst_param(const ad_check_result *result) {
  const ad_check_param *worst = NULL;
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    if (param->replicas_equal && param->update_equal && error_of(param) <= 1) continue;
    if (!worst || param->replicas_equal < worst->replicas_equal ||
        (param->replicas_equal == worst->replicas_equal && error_of(param) > error_of(worst)))
      worst = param;
  }
  return worst;
}

static int gradients_hold(const ad_check_result *result) {
  for (size_t i = 0; i < result->param_count; i++)
    if (error_of(&result->params[i]) > 1) return 0;
  return 1;
}

/* Writes what failed although no gradient failed. */
static void report_what_failed(const ad_check_result *result, ad_mutant *mutant) {
  char *text = mutant->message;
  size_t size = sizeof mutant->message;
  if (!(result->norm_err <= result->norm_bound))
    snprintf(text, size, "all gradients are right, but their norm is off by %.2g", result->norm_err);
  else if (*result->reports)
    snprintf(text, size, "all gradients are right, but %s", result->reports);
  else if (!(result->loss_err <= result->loss_bound))
    snprintf(text, size, "all gradients are right, but a loss is off by %.2g", result->loss_err);
  else if (*result->calls)
    snprintf(text, size, "all gradients are right, but the collectives of the step are not those of its plan: %s",
             result->calls);
}

void ad_mutant_killed_by_number(const ad_check_result *result, ad_mutant *mutant) {
  mutant->killed_by = AD_KILLED_BY_NUMBER;
  mutant->loss_err = result->loss_err;
  const ad_check_param *param = worst_param(result);
  if (!param || (result->norm_causes.count && gradients_hold(result))) {
    report_what_failed(result, mutant);
    snprintf(mutant->param, sizeof mutant->param, "%s", result->norm_param);
    ad_causes_copy(&mutant->causes, &result->norm_causes);
    return;
  }
  if (gradients_hold(result)) snprintf(mutant->message, sizeof mutant->message, "%s", result->reports);
  snprintf(mutant->param, sizeof mutant->param, "%s", param->name);
  mutant->ratio = param->ratio;
  ad_causes_copy(&mutant->causes, &param->causes);
}

/* ---- a mutant that only rounds, and that the check passed ---- */

/* Returns how far the mutation moved gradients, divided by how far the program's own roundings move them: the errors of
 * one process in the recipe's own dtypes together with those of communication dtypes, both measured. Root mean square
 * over the parameters that train. */
static double moved_over_roundings(const ad_check_result *result, const ad_computing *computing, const double *moved) {
  double squares = 0, count = 0;
  for (size_t i = 0; i < computing->count; i++) {
    count += !result->params[i].frozen;
    if (moved[i] != 0) squares += pow(moved[i] / hypot(computing->spread[i].error, computing->comm_rounding[i]), 2);
  }
  return sqrt(squares / count);
}

/* Decides whether a mutant that only rounds has an effect. If sums are short, rounding more often may move gradients by
 * less than the right program's own roundings do, and every bound allows those. So in a custom program a mutant is
 * without effect if it moves gradients by less than `within` times these roundings. (core/docs/dtypes.md has
 * measurements; ranks that compute in pieces differ from one process by all of their roundings.) A mutant that moves
 * gradients further survives: the bound that it passes is too wide. In addend's own programs all sums are long
 * enough. */
void ad_mutant_moved_by_rounding(const ad_check_result *result, const ad_computing *computing, const double *moved,
                                 int shards_formulas, ad_mutant *mutant) {
  double share = 0, within = shards_formulas ? 1 : 0.5;
  for (size_t i = 0; i < result->param_count; i++) share = fmax(share, ad_param_share(&result->params[i]));
  mutant->moved = moved_over_roundings(result, computing, moved);
  if (mutant->moved < within) mutant->killed_by = AD_KILLED_BY_NO_EFFECT;
  snprintf(mutant->message, sizeof mutant->message,
           "the mutation only rounds: it changes gradients by %.2g times what the program's own rounding does, and "
           "must be seen from %g times on; the largest error of a gradient is %.2g of its bound, that of all gradients "
           "together %.2g",
           mutant->moved, within, share, result->process_share);
}
