/* Plants known mistakes one at a time and says what became of each. Which mistakes a recipe can show follows from its
 * topology and its counts: a mistake that changes no number there is not planted. */
#include "check/sabotage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "addend/data.h"
#include "base/error.h"
#include "base/memory.h"

const char *ad_caught_name(ad_caught caught) {
  static const char *const names[] = {"none", "type", "number", "protocol"};
  return names[caught];
}

/* Counted tokens of a sample, as data.valid says. */
static int64_t tokens_of(const ad_recipe *recipe, int64_t sample) {
  double fraction = recipe->data.valid_count ? recipe->data.valid[(size_t)sample % recipe->data.valid_count] : 1;
  return (int64_t)llround(fraction * (double)recipe->data.seq);
}

static int64_t tokens_of_span(const ad_recipe *recipe, ad_span span) {
  int64_t tokens = 0;
  for (int64_t i = span.first; i < span.first + span.count; i++) tokens += tokens_of(recipe, i);
  return tokens;
}

static int microbatch_counts_differ(const ad_recipe *recipe) {
  int64_t batch = recipe->train.global_batch, microbatches = recipe->train.microbatches;
  int64_t first = tokens_of_span(recipe, ad_cut(batch, 0, microbatches));
  for (int64_t m = 1; m < microbatches; m++)
    if (tokens_of_span(recipe, ad_cut(batch, m, microbatches)) != first) return 1;
  return 0;
}

/* Whether the mistake changes anything here. A size-1 axis averages over one rank: nothing to see. */
static int can_show(ad_switch which, const ad_recipe *recipe, const ad_mesh *mesh, ad_axis axis) {
  if (ad_switch_at(which)->per_axis) return ad_mesh_axis_size(mesh, axis) > 1;
  switch (which) {
    case AD_SWITCH_MEAN_OF_MEANS:
      return microbatch_counts_differ(recipe);
    case AD_SWITCH_LAST_MICROBATCH:
      return recipe->train.microbatches > 1;
    default:
      return ad_mesh_size(mesh) > 1;
  }
}

static double expected_ratio(ad_switch which, double size) {
  if (which == AD_SWITCH_AVERAGE) return 1 / size;
  if (which == AD_SWITCH_DOUBLE_REDUCTION) return size;
  return NAN;
}

static void add(ad_switch which, const ad_mesh *mesh, ad_axis axis, ad_sabotage *out, size_t *count) {
  const ad_switch_record *record = ad_switch_at(which);
  ad_sabotage *sabotage = &out[(*count)++];
  *sabotage = (ad_sabotage){.catalogue = record->catalogue, .expected_ratio = NAN, .ratio = NAN};
  if (record->per_axis) {
    snprintf(sabotage->name, sizeof sabotage->name, "%s:%s", record->name, ad_axis_name(axis));
    sabotage->axes = AD_AXES(axis);
    sabotage->expected_ratio = expected_ratio(which, (double)ad_mesh_axis_size(mesh, axis));
  } else {
    snprintf(sabotage->name, sizeof sabotage->name, "%s", record->name);
  }
}

ad_status ad_sabotage_list(const ad_recipe *recipe, ad_sabotage out[AD_SABOTAGE_MAX], size_t *count) {
  ad_mesh *mesh;
  AD_TRY(ad_recipe_mesh(recipe, &mesh));
  *count = 0;
  for (int which = 0; which < AD_SWITCH_COUNT; which++) {
    int axes = ad_switch_at((ad_switch)which)->per_axis ? AD_AXIS_COUNT : 1;
    for (int axis = 0; axis < axes && *count < AD_SABOTAGE_MAX; axis++)
      if (can_show((ad_switch)which, recipe, mesh, (ad_axis)axis))
        add((ad_switch)which, mesh, (ad_axis)axis, out, count);
  }
  ad_mesh_destroy(mesh);
  return AD_OK;
}

static double error_of(const ad_proof_param *param) {
  return isnan(param->max_rel_err) || isnan(param->ratio) ? INFINITY : param->max_rel_err;
}

/* The parameter that shows the mistake best: unequal replicas before errors, then the worst error. */
static const ad_proof_param *worst_param(const ad_proof *proof) {
  const ad_proof_param *worst = NULL;
  for (size_t i = 0; i < proof->param_count; i++) {
    const ad_proof_param *param = &proof->params[i];
    if (param->replicas_equal && error_of(param) <= param->bound) continue;
    if (!worst || param->replicas_equal < worst->replicas_equal ||
        (param->replicas_equal == worst->replicas_equal && error_of(param) > error_of(worst)))
      worst = param;
  }
  return worst;
}

static void caught_by_number(const ad_proof *proof, ad_sabotage *sabotage) {
  if (ad_proof_passes(proof, 0)) return;
  sabotage->caught = AD_CAUGHT_NUMBER;
  const ad_proof_param *param = worst_param(proof);
  if (!param) return;
  snprintf(sabotage->param, sizeof sabotage->param, "%s", param->name);
  sabotage->ratio = param->ratio;
  sabotage->cause = param->cause;
}

ad_status ad_sabotage_try(const ad_recipe *recipe, const ad_check_options *options, ad_proof *proof,
                          ad_sabotage *sabotage) {
  ad_check_options quiet = *options;
  quiet.progress = NULL;
  ad_launch_result result;
  ad_proof_job job = {recipe, &quiet, sabotage->name, proof};
  ad_status status = ad_proof_run(&job, &result);
  if (!status) {
    caught_by_number(proof, sabotage);
    return AD_OK;
  }
  if (status == AD_INTERRUPTED || status == AD_SYSTEM || status == AD_MEMORY || result.signal) return status;
  sabotage->caught = result.status == AD_TYPE ? AD_CAUGHT_TYPE : AD_CAUGHT_PROTOCOL;
  snprintf(sabotage->message, sizeof sabotage->message, "%s", result.message);
  return AD_OK;
}
