/* Writes what a check found as the JSON document that users and scripts rely on. A number that is not finite becomes
 * null. */
#include "check/document.h"

#include <math.h>

#include "check/computing.h"
#include "check/groups.h"
#include "check/no_axis.h"

static json_t *json_number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *text_or_null(const char *text) { return text && *text ? json_string(text) : json_null(); }

/* Returns the word for why no axis is named; null if an axis is named. */
static json_t *no_axis_document(ad_no_axis why) { return why ? json_string(ad_no_axis_name(why)) : json_null(); }

static json_t *causes_document(const ad_causes *causes) {
  json_t *list = json_array();
  for (int i = 0; i < causes->count; i++) {
    const ad_cause *cause = &causes->list[i];
    char axes[80];
    json_t *document = ad_cause_document(ad_cause_name(cause->kind), ad_axes_print(cause->axes, axes, sizeof axes),
                                         cause->factor, cause->text, cause->place);
    json_object_set_new(document, "no_axis", no_axis_document(ad_cause_no_axis(cause)));
    json_array_append_new(list, document);
  }
  return list;
}

static json_t *param_document(const ad_check_param *param) {
  json_t *document = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:o, s:b}", "name", param->name, "mesh",
                               param->mesh, "layout", param->layout, "storage", param->storage, "reduced_over",
                               param->reduced_over, "step", (json_int_t)param->step, "ratio", json_number(param->ratio),
                               "max_rel_err", json_number(param->max_rel_err), "bound", json_number(param->bound),
                               "replicas_equal", param->replicas_equal);
  ad_cause_set(document, causes_document(&param->causes));
  json_object_set_new(document, "reached", json_boolean(param->reached));
  if (param->frozen)
    json_object_set_new(document, "frozen", json_string(param->update_equal ? "unchanged" : "changed"));
  if (isnan(param->one_process)) return document;
  json_object_set_new(document, "one_process_err", json_number(param->one_process));
  json_object_set_new(document, "comm_rounding_err", json_number(param->comm_rounding));
  json_object_set_new(document, "cosine", json_number(param->cosine));
  json_object_set_new(document, "sum_share", json_number(param->sum_share));
  json_object_set_new(document, "process_share", json_number(param->process_share));
  return document;
}

static json_t *params_document(const ad_findings *findings) {
  json_t *params = json_array();
  if (findings->options->directional) return params;
  for (size_t i = 0; i < findings->result->param_count; i++) {
    const ad_check_param *param = &findings->result->params[i];
    json_t *document = param_document(param);
    if (ad_groups_are_reported(findings->recipe))
      json_object_set_new(document, "group", ad_group_match_document(findings->recipe, param->group));
    json_array_append_new(params, document);
  }
  return params;
}

/* Returns the first parameter that has a gradient; NULL if all are frozen. */
static const ad_check_param *first_trained(const ad_check_result *result) {
  size_t i = 0;
  while (i < result->param_count && result->params[i].frozen) i++;
  return i < result->param_count ? &result->params[i] : NULL;
}

static size_t count_frozen(const ad_check_result *result) {
  size_t count = 0;
  for (size_t i = 0; i < result->param_count; i++) count += result->params[i].frozen != 0;
  return count;
}

/* Returns the larger number; NaN if one of them is NaN. */
static double worse(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

/* Adds the parameters that the norm counts more or less than once, and the causes. */
static void add_counted(const ad_check_result *result, json_t *norm) {
  json_t *list = json_array();
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    if (isfinite(param->counted) && fabs(param->counted - 1) > 1e-6)
      json_array_append_new(list, json_pack("{s:s, s:f}", "name", param->name, "times", param->counted));
  }
  json_object_set_new(norm, "counted", list);
  ad_cause_set(norm, causes_document(&result->norm_causes));
}

/* Adds facts about the steps that overflowed and were skipped, if there are any. */
static void add_overflow(const ad_overflow *overflow, json_t *document) {
  if (!overflow->skipped) return;
  json_object_set_new(
      document, "overflow",
      json_pack("{s:I, s:i, s:o, s:i}", "steps", (json_int_t)overflow->skipped, "scale", overflow->scale, "param",
                text_or_null(overflow->param), "checked_at", overflow->taken_at));
}

static int replicas_equal(const ad_check_result *result) {
  int equal = 1;
  for (size_t i = 0; i < result->param_count; i++) equal &= result->params[i].replicas_equal;
  return equal;
}

static json_t *error_document(double error, double bound) {
  return json_pack("{s:o, s:o}", "rel_err", json_number(error), "bound", json_number(bound));
}

/* Adds verdicts that belong to no parameter: replicas, initial values, updates, collectives, reports, states and
 * choices. */
static void add_facts(const ad_check_result *result, json_t *document) {
  json_object_set_new(document, "replicas_equal", json_boolean(replicas_equal(result)));
  json_object_set_new(document, "initial_equal", json_boolean(result->initial_equal));
  json_object_set_new(document, "updates_equal", json_boolean(result->updates_equal));
  json_object_set_new(document, "collectives",
                      json_pack("{s:I, s:I, s:b, s:o}", "calls", (json_int_t)result->call_count, "bytes",
                                (json_int_t)result->call_bytes, "as_planned", !result->calls[0], "difference",
                                text_or_null(result->calls)));
  json_object_set_new(document, "reports_differ", text_or_null(result->reports));
  if (result->judges_states) json_object_set_new(document, "states", error_document(result->state_err, AD_STATE_BOUND));
  if (isfinite(result->margin) && result->choice_bound != 0)
    json_object_set_new(document, "choices",
                        json_pack("{s:o, s:o}", "below", json_number(result->choice_error), "bound",
                                  json_number(result->choice_bound)));
}

static json_t *summary_document(const ad_findings *findings) {
  const ad_check_result *result = findings->result;
  double ratio = 0, error = 0;
  int directional = findings->options->directional;
  size_t count = directional ? 0 : result->param_count;
  for (size_t i = 0; i < count; i++) {
    if (result->params[i].frozen) continue;
    ratio = worse(ratio, fabs(result->params[i].ratio - 1));
    error = worse(error, result->params[i].max_rel_err);
  }
  json_t *summary = json_pack("{s:I, s:o, s:o, s:b, s:b}", "params", (json_int_t)count, "worst_ratio_error",
                              json_number(ratio), "worst_rel_err", json_number(error), "replicas_equal", 1, "pass",
                              ad_check_result_matches(result, directional));
  json_object_set_new(summary, "counted", json_integer((json_int_t)result->counted));
  if (directional) return summary;
  json_object_set_new(summary, "reached", json_integer((json_int_t)ad_check_result_reached(result, 0)));
  if (count_frozen(result)) json_object_set_new(summary, "frozen", json_integer((json_int_t)count_frozen(result)));
  add_facts(result, summary);
  if (first_trained(result) && !isnan(first_trained(result)->one_process)) {
    json_object_set_new(summary, "process_share", json_number(result->process_share));
    json_object_set_new(summary, "false_alarm", json_real(AD_FALSE_ALARMS));
  }
  add_overflow(&result->overflow, summary);
  if (isfinite(result->margin)) json_object_set_new(summary, "smallest_margin", json_number(result->margin));
  if (findings->steps > 1)
    json_object_set_new(summary, "free_running_difference", json_number(result->free_difference));
  return summary;
}

static const char *killing_param(const ad_mutant *mutant) {
  return mutant->killed_by == AD_KILLED_BY_NUMBER ? mutant->param : NULL;
}

static json_t *derived_document(const ad_mutant *mutant) {
  static const char *const phases[] = {"forward", "backward", "step"};
  const ad_mutation *mutation = &mutant->mutation;
  char place[AD_PROGRAM_NAME_SIZE + 128], axes[80];
  if (mutant->known) return json_null();
  return json_pack("{s:s, s:s, s:o, s:s, s:s, s:s}", "place", ad_place_print(&mutation->place, place, sizeof place),
                   "operator", ad_operator_name(mutation->operator_), "axis",
                   text_or_null(ad_operator_has_axis(mutation->operator_) ? ad_axis_name(mutation->axis) : NULL),
                   "axes", ad_axes_print(mutation->place.axes & mutation->place.named, axes, sizeof axes), "phase",
                   phases[mutation->place.phase], "form", mutation->in_record ? "record" : "execution");
}

static json_t *mutant_document(const ad_mutant *mutant) {
  json_t *document =
      json_pack("{s:s, s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:n, s:n, s:o, s:o}", "name", mutant->name, "catalogue",
                mutant->catalogue ? json_integer(mutant->catalogue) : json_null(), "dtype",
                ad_mutant_is_of_dtype(mutant) || (mutant->known && mutant->known->of_bits) ? "recipe" : "f64",
                "killed_by", ad_killed_by_name(mutant->killed_by), "param", text_or_null(killing_param(mutant)),
                "ratio", json_number(mutant->ratio), "expected_ratio", json_number(mutant->expected_ratio),
                "loss_rel_err", json_number(mutant->loss_err), "moved", json_number(mutant->moved), "only_loss",
                "cause", "message", text_or_null(mutant->message), "derived", derived_document(mutant));
  ad_cause_set(document, causes_document(&mutant->causes));
  char names[80];
  ad_no_axis why;
  json_object_set_new(document, "axes", text_or_null(ad_axes_print(ad_mutant_axes(mutant, &why), names, sizeof names)));
  json_object_set_new(document, "no_axis", no_axis_document(why));
  return document;
}

static size_t count_derived(const ad_mutants *mutants, ad_killed_by killed_by) {
  size_t count = 0;
  for (size_t i = 0; i < mutants->derived; i++) count += mutants->list[i].killed_by == killed_by;
  return count;
}

static json_t *coverage_document(const ad_mutants *mutants) {
  json_int_t type = (json_int_t)count_derived(mutants, AD_KILLED_BY_TYPE);
  json_int_t by_number = (json_int_t)count_derived(mutants, AD_KILLED_BY_NUMBER);
  json_int_t protocol = (json_int_t)count_derived(mutants, AD_KILLED_BY_PROTOCOL);
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "places", (json_int_t)mutants->places,
                   "mutants", (json_int_t)mutants->derived, "drawn_from", (json_int_t)mutants->derived_in_all, "seed",
                   (json_int_t)mutants->seed, "killed", type + by_number + protocol, "by_type", type, "by_number",
                   by_number, "by_protocol", protocol, "no_effect",
                   (json_int_t)count_derived(mutants, AD_KILLED_BY_NO_EFFECT), "survived",
                   (json_int_t)count_derived(mutants, AD_KILLED_BY_NONE));
}

static size_t untried(const ad_mutants *mutants) {
  return ad_mutants_untried(mutants, 0) + ad_mutants_untried(mutants, 1);
}

static void add_untried(const ad_mutants *mutants, json_t *document) {
  static const char *const dtypes[] = {"f64", "recipe"};
  json_t *list = json_array();
  for (int own = 0; own < 2; own++) {
    json_int_t count = (json_int_t)ad_mutants_untried(mutants, own);
    if (count) json_array_append_new(list, json_pack("{s:s, s:I}", "dtype", dtypes[own], "mutants", count));
  }
  json_object_set_new(document, "untried", list);
}

static void add_mutants(const ad_mutants *mutants, json_t *document) {
  json_t *list = json_array(), *not_applicable = json_array();
  for (size_t i = 0; i < mutants->count; i++) {
    const ad_mutant *mutant = &mutants->list[i];
    if (mutant->killed_by == AD_KILLED_BY_UNTRIED) continue;
    if (mutant->killed_by != AD_KILLED_BY_NOT_APPLICABLE)
      json_array_append_new(list, mutant_document(mutant));
    else
      json_array_append_new(not_applicable, json_pack("{s:s, s:s}", "name", mutant->name, "why", mutant->message));
  }
  json_object_set_new(document, "mutants", list);
  json_object_set_new(document, "not_applicable", not_applicable);
  add_untried(mutants, document);
  json_object_set_new(document, "coverage", coverage_document(mutants));
  json_object_set_new(document, "survivors", json_integer((json_int_t)ad_mutants_survivors(mutants)));
}

/* Returns the parameter whose error is the largest share of its bound, and sets *share to this share. */
static const ad_check_param *nearest(const ad_check_result *result, double *share) {
  const ad_check_param *worst = &result->params[0];
  *share = -1;
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    double own = ad_param_share(param);
    if (param->frozen || own <= *share) continue;
    worst = param;
    *share = own;
    if (isnan(own)) break;
  }
  return worst;
}

/* Returns the smallest cosine of all gradients; NaN if a gradient is zero and its reference is not, or the reverse. */
static double worst_cosine(const ad_check_result *result) {
  double worst = 1;
  for (size_t i = 0; i < result->param_count; i++) {
    const ad_check_param *param = &result->params[i];
    if (param->frozen) continue;
    if (isnan(param->cosine) && param->max_rel_err != 0) return NAN;
    if (param->cosine < worst) worst = param->cosine;
  }
  return worst;
}

static json_t *own_document(const ad_check_result *result) {
  double share;
  const ad_check_param *worst = nearest(result, &share);
  json_t *own =
      json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:f, s:b}", "worst_share_of_bound", json_number(share), "param",
                worst->name, "err", json_number(worst->max_rel_err), "one_process_err", json_number(worst->one_process),
                "worst_cosine", json_number(worst_cosine(result)), "process_share", json_number(result->process_share),
                "false_alarm", AD_FALSE_ALARMS, "pass", ad_check_result_matches(result, 0));
  add_overflow(&result->overflow, own);
  json_object_set_new(own, "loss", error_document(result->loss_err, result->loss_bound));
  json_object_set_new(own, "norm", error_document(result->norm_err, result->norm_bound));
  add_counted(result, json_object_get(own, "norm"));
  add_facts(result, own);
  return own;
}

/* Returns null if bits were not compared. */
static json_t *bits_document(const ad_bits_finding *bits) {
  if (!bits) return json_null();
  json_t *document = json_pack("{s:b, s:I, s:I, s:I, s:I, s:o}", "equal", bits->equal, "steps", (json_int_t)bits->steps,
                               "leaves", (json_int_t)bits->leaves, "ranks", (json_int_t)bits->ranks, "compared",
                               (json_int_t)bits->compared, "difference", text_or_null(bits->difference));
  json_t *first = json_null();
  const ad_bits_note *note = &bits->first;
  if (bits->what)
    first = json_pack("{s:s, s:I, s:o, s:[I, I], s:o}", "what", bits->what, "step", (json_int_t)note->step, "param",
                      text_or_null(bits->param), "leaves", (json_int_t)note->node.first,
                      (json_int_t)note->node.first + (json_int_t)note->node.count, "rank",
                      bits->rank < 0 ? json_null() : json_integer((json_int_t)bits->rank));
  json_object_set_new(document, "first", first);
  return document;
}

/* ---- the verdict, and the whole document ---- */

const char *ad_findings_reason(const ad_findings *findings) {
  if (!findings->result->counted)
    return "no token counts in the loss, so every gradient is zero, here and in one process, which shows nothing about "
           "sums; change data.valid, data.mask or the text";
  if (findings->result->complete && ad_check_result_passes(findings->result, findings->options->directional) &&
      !ad_check_result_reached(findings->result, findings->options->directional))
    return "no gradient reached any parameter: every gradient is zero, here and in one process, which shows nothing "
           "about sums; the loss depends on no parameter, is multiplied by 0, or has no label that counts";
  const ad_mutants *mutants = findings->mutants;
  if (mutants && !ad_mutants_effective(mutants) && !ad_mutants_untried(mutants, 0))
    return "no mutant changes a number, so nothing shows what the check notices; use a mesh with more ranks or more "
           "microbatches";
  return NULL;
}

int ad_findings_hold(const ad_findings *findings) {
  if (ad_findings_reason(findings)) return 0;
  if (!ad_check_result_matches(findings->result, findings->options->directional)) return 0;
  if (findings->own && !ad_check_result_matches(findings->own, 0)) return 0;
  if (findings->slope && !ad_check_result_passes(findings->slope, 1)) return 0;
  if (findings->bits && !findings->bits->equal) return 0;
  const ad_mutants *mutants = findings->mutants;
  return !mutants || (!ad_mutants_survivors(mutants) && !untried(mutants));
}

/* Returns the recipe's mesh: a text, or an object with one text for each module. */
static json_t *mesh_document(const ad_recipe *recipe) {
  if (recipe->mesh_count == 1) return json_string(recipe->meshes[0].text);
  json_t *meshes = json_object();
  for (size_t i = 0; i < recipe->mesh_count; i++)
    json_object_set_new(meshes, recipe->meshes[i].module, json_string(recipe->meshes[i].text));
  return meshes;
}

static void add_directional(const ad_check_result *result, json_t *document) {
  json_t *directional =
      json_pack("{s:o, s:o, s:o, s:f, s:b}", "difference", json_number(result->difference), "derivative",
                json_number(result->derivative), "rel_err", json_number(result->directional_err), "bound",
                AD_DIRECTIONAL_BOUND, "pass", ad_check_result_passes(result, 1));
  if (result->stopped[0] && !ad_check_result_passes(result, 1))
    json_object_set_new(directional, "changing_constant", json_string(result->stopped));
  json_object_set_new(document, "directional", directional);
}

static const char *dtype_name(const ad_findings *findings) {
  if (findings->options->recipe_dtype) return "recipe";
  return ad_dtype_name(findings->options->dtype ? findings->options->dtype : AD_F64);
}

json_t *ad_findings_document(const ad_findings *findings) {
  const ad_check_result *result = findings->result;
  int directional = findings->options->directional;
  json_t *document = json_pack("{s:s, s:I, s:o, s:s, s:s, s:I, s:f, s:{s:o, s:o}}", "recipe", findings->recipe->name,
                               "world", (json_int_t)findings->world, "mesh", mesh_document(findings->recipe), "backend",
                               findings->backend, "dtype", dtype_name(findings), "steps", (json_int_t)findings->steps,
                               "seconds", findings->seconds, "loss", "dist", json_number(result->loss_dist), "ref",
                               directional ? json_null() : json_number(result->loss_ref));
  if (!document) return NULL;
  if (!directional) {
    json_object_set_new(json_object_get(document, "loss"), "rel_err", json_number(result->loss_err));
    json_object_set_new(json_object_get(document, "loss"), "bound", json_number(result->loss_bound));
  }
  json_object_set_new(document, "norm",
                      json_pack("{s:o, s:o, s:o}", "dist", json_number(result->norm_dist), "ref",
                                directional ? json_null() : json_number(result->norm_ref), "rel_err",
                                directional ? json_null() : json_number(result->norm_err)));
  if (!directional) json_object_set_new(json_object_get(document, "norm"), "bound", json_number(result->norm_bound));
  if (!directional) add_counted(result, json_object_get(document, "norm"));
  json_object_set_new(document, "params", params_document(findings));
  if (ad_groups_are_reported(findings->recipe) && !directional)
    json_object_set_new(document, "groups", ad_groups_document(findings->recipe, result));
  json_object_set_new(document, "summary", summary_document(findings));
  if (directional || findings->slope) add_directional(directional ? result : findings->slope, document);
  if (findings->not_smooth) json_object_set_new(document, "not_smooth", json_string(findings->not_smooth));
  if (findings->own) json_object_set_new(document, "own_dtypes", own_document(findings->own));
  if (findings->recipe->train.leaves && !directional)
    json_object_set_new(document, "bits", bits_document(findings->bits));
  if (findings->mutants) add_mutants(findings->mutants, document);
  json_object_set_new(document, "holds", json_boolean(ad_findings_hold(findings)));
  const char *reason = ad_findings_reason(findings);
  json_object_set_new(document, "reason", reason ? json_string(reason) : json_null());
  return document;
}
