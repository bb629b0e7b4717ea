/* What sources may be off by after a step, gathered as they climb in the reference. */
#include "check/slack.h"

#include <math.h>
#include "base/memory.h"
#include "check/proof.h"
#include "program/decompose/sources.h"

static ad_slack_of *find(const ad_slack *slack, const double *value) {
  for (size_t i = 0; i < slack->count; i++)
    if (slack->list[i].value == value) return &slack->list[i];
  return NULL;
}

static ad_status add_source(ad_slack *slack, const double *value, size_t numel) {
  ad_slack_of of = {.value = value, .numel = numel};
  AD_TRY(ad_grow(&slack->list, slack->count, slack->count + 1));
  AD_TRY(ad_new(numel, &of.at));
  slack->list[slack->count++] = of;
  return AD_OK;
}

static double largest_gradient(const ad_climbed_passing *climbed, size_t i) {
  const ad_array *gradient = climbed->gradients[i];
  return fabs(climbed->factor) * ad_largest(gradient->data, gradient->dtype, ad_array_numel(gradient));
}

static ad_status take_source(ad_slack *slack, const ad_climbed_passing *climbed, size_t i, double error) {
  const ad_array *gradient = climbed->gradients[i];
  ad_heights at = ad_climbed_heights(climbed, i);
  if (!find(slack, at.value)) AD_TRY(add_source(slack, at.value, ad_array_numel(gradient)));
  ad_ascent_slack(climbed->sources->options, &at, gradient, climbed->factor, climbed->steps, error,
                  find(slack, at.value)->at);
  return AD_OK;
}

/* As errors of parameters' gradients are: of the largest element, or of a millionth of what is largest of all. */
static void take(void *context, void *passing) {
  ad_slack *slack = context;
  const ad_climbed_passing *climbed = passing;
  double largest = 0;
  for (size_t i = 0; i < climbed->sources->per_microbatch; i++) largest = fmax(largest, largest_gradient(climbed, i));
  for (size_t i = 0; i < climbed->sources->per_microbatch && !slack->status; i++)
    slack->status = take_source(slack, climbed, i, AD_WIDE_BOUND * fmax(largest_gradient(climbed, i), 1e-6 * largest));
}

void ad_slack_watch(ad_slack *slack) {
  for (size_t i = 0; i < slack->count; i++)
    for (size_t k = 0; k < slack->list[i].numel; k++) slack->list[i].at[k] = 0;
  ad_seam_plant(AD_SEAM_CLIMBED, (ad_seam_slot){take, slack});
}

void ad_slack_release(ad_slack *slack) {
  for (size_t i = 0; i < slack->count; i++) ad_release(slack->list[i].at);
  ad_release(slack->list);
  *slack = (ad_slack){0};
}

/* A distance that is not finite stays so. */
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
  const ad_slack_of *of = find(slack, ref->data);
  double ratio, error;
  if (of) return error_beyond(of, ref->data, dist);
  ad_compare(dist, ref->data, ref->dtype, ad_array_numel(ref), 0, &ratio, &error);
  return error;
}
