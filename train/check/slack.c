/* Collects, during the reference's step, how far each state may be off after the step. */
#include "check/slack.h"

#include <math.h>
#include "base/memory.h"
#include "check/result.h"
#include "program/states.h"

static ad_slack_of *find_slack(const ad_slack *slack, const double *value) {
  for (size_t i = 0; i < slack->count; i++)
    if (slack->list[i].value == value) return &slack->list[i];
  return NULL;
}

static ad_status add_state(ad_slack *slack, const double *value, size_t numel) {
  ad_slack_of of = {.value = value, .numel = numel};
  AD_TRY(ad_grow(&slack->list, slack->count, slack->count + 1));
  AD_TRY(ad_new(numel, &of.at));
  slack->list[slack->count++] = of;
  return AD_OK;
}

static double largest_of(const ad_state_change *change) {
  const ad_array *gradient = change->gradient;
  return ad_largest(gradient->data, gradient->dtype, ad_array_numel(gradient));
}

static ad_status take_state(ad_slack *slack, const ad_states_passing *changed, size_t i, double error) {
  const ad_state_change *change = &changed->changes[i];
  const double *value = ad_phase_state(changed->at, change->state)->data;
  if (!find_slack(slack, value)) AD_TRY(add_state(slack, value, ad_array_numel(change->gradient)));
  changed->rule->off(changed->rule->own, changed->at, change, i, error, find_slack(slack, value)->at);
  return AD_OK;
}

/* Adds to the slack of each state what the rule reports for its change (ad_state_rule.off). As for gradients of
 * parameters, an element of a state's gradient may be off by AD_WIDE_BOUND times the largest element of that gradient
 * or, if this is more, times a millionth of the largest element of all these gradients. */
static void note_changes(void *context, void *passing) {
  ad_slack *slack = context;
  const ad_states_passing *changed = passing;
  double largest = 0;
  if (!changed->rule->off) return;
  for (size_t i = 0; i < changed->count; i++) largest = fmax(largest, largest_of(&changed->changes[i]));
  for (size_t i = 0; i < changed->count && !slack->status; i++)
    slack->status =
        take_state(slack, changed, i, AD_WIDE_BOUND * fmax(largest_of(&changed->changes[i]), 1e-6 * largest));
}

void ad_slack_watch(ad_slack *slack) {
  for (size_t i = 0; i < slack->count; i++)
    for (size_t k = 0; k < slack->list[i].numel; k++) slack->list[i].at[k] = 0;
  ad_injection_set(AD_INJECT_STATES, (ad_injection){note_changes, slack});
}

void ad_slack_release(ad_slack *slack) {
  for (size_t i = 0; i < slack->count; i++) ad_release(slack->list[i].at);
  ad_release(slack->list);
  *slack = (ad_slack){0};
}

/* Returns how far `distance` exceeds the slack; a distance that is not finite stays as it is. */
static double beyond(double distance, double slack) { return distance <= slack ? 0 : distance - slack; }

static double error_beyond(const ad_slack_of *of, const double *ref, const double *dist) {
  double worst = 0;
  for (size_t k = 0; k < of->numel; k++) {
    double distance = beyond(fabs(dist[k] - ref[k]), of->at[k]);
    if (isnan(distance)) return NAN;
    worst = fmax(worst, distance);
  }
  return worst == 0 ? 0 : worst / ad_largest(ref, AD_F64, of->numel);
}

double ad_slack_error(const ad_slack *slack, const ad_array *ref, const void *dist) {
  const ad_slack_of *of = find_slack(slack, ref->data);
  double ratio, error;
  if (of) return error_beyond(of, ref->data, dist);
  ad_compare(dist, ref->data, ref->dtype, ad_array_numel(ref), 0, &ratio, &error);
  return error;
}
