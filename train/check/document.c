/* Writes what a check found as the JSON document that users and scripts rely on. A number that is not finite becomes
 * null. */
#include "check/document.h"

#include <math.h>

#include "check/computing.h"
#include "check/no_axis.h"

static json_t *number(double value) { return isfinite(value) ? json_real(value) : json_null(); }

static json_t *text_or_null(const char *text) { return text && *text ? json_string(text) : json_null(); }

/* The word for why no axis is named; null if one is. */
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

static json_t *param_document(const ad_proof_param *param) {
  json_t *document =
      json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:o, s:o, s:o, s:b}", "name", param->name, "mesh", param->mesh,
                "layout", param->layout, "storage", param->storage, "reduced_over", param->reduced_over, "step",
                (json_int_t)param->step, "ratio", number(param->ratio), "max_rel_err", number(param->max_rel_err),
                "bound", number(param->bound), "replicas_equal", param->replicas_equal);
  ad_cause_set(document, causes_document(&param->causes));
  json_object_set_new(document, "reached", json_boolean(param->reached));
  if (isnan(param->one_process)) return document;
  json_object_set_new(document, "one_process_err", number(param->one_process));
  json_object_set_new(document, "wires_err", number(param->wires));
  json_object_set_new(document, "cosine", number(param->cosine));
  json_object_set_new(document, "sum_share", number(param->sum_share));
  json_object_set_new(document, "process_share", number(param->process_share));
  return document;
}

static json_t *params_document(const ad_findings *findings) {
  json_t *params = json_array();
  if (findings->options->directional) return params;
  for (size_t i = 0; i < findings->proof->param_count; i++)
    json_array_append_new(params, param_document(&findings->proof->params[i]));
  return params;
}

/* The larger number; NaN if one is NaN. */
static double worse(double a, double b) { return isnan(a) || isnan(b) ? NAN : fmax(a, b); }

/* Adds what the norm counts other than once, and why. */
static void add_counted(const ad_proof *proof, json_t *norm) {
  json_t *list = json_array();
  for (size_t i = 0; i < proof->param_count; i++) {
    const ad_proof_param *param = &proof->params[i];
    if (isfinite(param->counted) && fabs(param->counted - 1) > 1e-6)
      json_array_append_new(list, json_pack("{s:s, s:f}", "name", param->name, "times", param->counted));
  }
  json_object_set_new(norm, "counted", list);
  ad_cause_set(norm, causes_document(&proof->norm_causes));
}

/* Adds what became of steps that overflowed, if some did and were skipped. */
static void add_overflow(const ad_overflow *overflow, json_t *document) {
  if (!overflow->skipped) return;
  json_object_set_new(
      document, "overflow",
      json_pack("{s:I, s:i, s:o, s:i}", "steps", (json_int_t)overflow->skipped, "scale", overflow->scale, "param",
                text_or_null(overflow->param), "proven_at", overflow->taken_at));
}

static int replicas_equal(const ad_proof *proof) {
  int equal = 1;
  for (size_t i = 0; i < proof->param_count; i++) equal &= proof->params[i].replicas_equal;
  return equal;
}

static json_t *error_document(double error, double bound) {
  return json_pack("{s:o, s:o}", "rel_err", number(error), "bound", number(bound));
}

/* Adds verdicts that belong to no parameter: replicas, initial values, updates, collectives, reports, states, choices. */
static void add_facts(const ad_proof *proof, json_t *document) {
  json_object_set_new(document, "replicas_equal", json_boolean(replicas_equal(proof)));
  json_object_set_new(document, "initial_equal", json_boolean(proof->initial_equal));
  json_object_set_new(document, "updates_equal", json_boolean(proof->updates_equal));
  json_object_set_new(
      document, "collectives",
      json_pack("{s:I, s:I, s:b, s:o}", "calls", (json_int_t)proof->call_count, "bytes", (json_int_t)proof->call_bytes,
                "as_planned", !proof->calls[0], "difference", text_or_null(proof->calls)));
  json_object_set_new(document, "reports_differ", text_or_null(proof->reports));
  if (proof->judges_states) json_object_set_new(document, "states", error_document(proof->state_err, AD_STATE_BOUND));
  if (isfinite(proof->margin) && proof->turned_bound != 0)
    json_object_set_new(document, "choices",
                        json_pack("{s:o, s:o}", "below", number(proof->turned), "bound", number(proof->turned_bound)));
}

static json_t *summary_document(const ad_findings *findings) {
  const ad_proof *proof = findings->proof;
  double ratio = 0, error = 0;
  int directional = findings->options->directional;
  size_t count = directional ? 0 : proof->param_count;
  for (size_t i = 0; i < count; i++) {
    ratio = worse(ratio, fabs(proof->params[i].ratio - 1));
    error = worse(error, proof->params[i].max_rel_err);
  }
  json_t *summary =
      json_pack("{s:I, s:o, s:o, s:b, s:b}", "params", (json_int_t)count, "worst_ratio_error", number(ratio),
                "worst_rel_err", number(error), "replicas_equal", 1, "pass", ad_proof_proves(proof, directional));
  json_object_set_new(summary, "counted", json_integer((json_int_t)proof->counted));
  if (directional) return summary;
  json_object_set_new(summary, "reached", json_integer((json_int_t)ad_proof_reached(proof, 0)));
  add_facts(proof, summary);
  if (count && !isnan(proof->params[0].one_process)) {
    json_object_set_new(summary, "process_share", number(proof->process_share));
    json_object_set_new(summary, "false_alarm", json_real(AD_FALSE_ALARMS));
  }
  add_overflow(&proof->overflow, summary);
  if (isfinite(proof->margin)) json_object_set_new(summary, "smallest_margin", number(proof->margin));
  if (findings->steps > 1) json_object_set_new(summary, "free_running_difference", number(proof->free_difference));
  return summary;
}

static const char *caught_param(const ad_sabotage *sabotage) {
  return sabotage->caught == AD_CAUGHT_NUMBER ? sabotage->param : NULL;
}

static json_t *derived_document(const ad_sabotage *sabotage) {
  static const char *const phases[] = {"forward", "backward", "step"};
  const ad_planting *planting = &sabotage->planting;
  char place[AD_PROGRAM_NAME_SIZE + 128], axes[80];
  if (sabotage->known) return json_null();
  return json_pack("{s:s, s:s, s:o, s:s, s:s, s:s}", "place", ad_place_print(&planting->place, place, sizeof place),
                   "operator", ad_operator_name(planting->operator_), "axis",
                   text_or_null(ad_operator_has_axis(planting->operator_) ? ad_axis_name(planting->axis) : NULL),
                   "axes", ad_axes_print(planting->place.axes & planting->place.named, axes, sizeof axes), "phase",
                   phases[planting->place.phase], "form", planting->in_record ? "record" : "execution");
}

static json_t *sabotage_document(const ad_sabotage *sabotage) {
  json_t *document = json_pack(
      "{s:s, s:o, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:n, s:n, s:o, s:o}", "name", sabotage->name, "catalogue",
      sabotage->catalogue ? json_integer(sabotage->catalogue) : json_null(), "dtype",
      ad_sabotage_is_of_dtype(sabotage) ? "recipe" : "f64", "caught_by", ad_caught_name(sabotage->caught), "param",
      text_or_null(caught_param(sabotage)), "ratio", number(sabotage->ratio), "expected_ratio",
      number(sabotage->expected_ratio), "loss_rel_err", number(sabotage->loss_err), "moved", number(sabotage->moved),
      "only_loss", "cause", "message", text_or_null(sabotage->message), "derived", derived_document(sabotage));
  ad_cause_set(document, causes_document(&sabotage->causes));
  char names[80];
  ad_no_axis why;
  json_object_set_new(document, "axes",
                      text_or_null(ad_axes_print(ad_sabotage_axes(sabotage, &why), names, sizeof names)));
  json_object_set_new(document, "no_axis", no_axis_document(why));
  return document;
}

static size_t count_derived(const ad_sabotages *sabotages, ad_caught caught) {
  size_t count = 0;
  for (size_t i = 0; i < sabotages->derived; i++) count += sabotages->list[i].caught == caught;
  return count;
}

static json_t *coverage_document(const ad_sabotages *sabotages) {
  json_int_t type = (json_int_t)count_derived(sabotages, AD_CAUGHT_TYPE);
  json_int_t by_number = (json_int_t)count_derived(sabotages, AD_CAUGHT_NUMBER);
  json_int_t protocol = (json_int_t)count_derived(sabotages, AD_CAUGHT_PROTOCOL);
  return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "places", (json_int_t)sabotages->places,
                   "mistakes", (json_int_t)sabotages->derived, "drawn_from", (json_int_t)sabotages->derived_in_all,
                   "seed", (json_int_t)sabotages->seed, "caught", type + by_number + protocol, "by_type", type,
                   "by_number", by_number, "by_protocol", protocol, "no_effect",
                   (json_int_t)count_derived(sabotages, AD_CAUGHT_NO_EFFECT), "survived",
                   (json_int_t)count_derived(sabotages, AD_CAUGHT_NONE));
}

static size_t untried(const ad_sabotages *sabotages) {
  return ad_sabotages_untried(sabotages, 0) + ad_sabotages_untried(sabotages, 1);
}

static void add_untried(const ad_sabotages *sabotages, json_t *document) {
  static const char *const dtypes[] = {"f64", "recipe"};
  json_t *list = json_array();
  for (int own = 0; own < 2; own++) {
    json_int_t count = (json_int_t)ad_sabotages_untried(sabotages, own);
    if (count) json_array_append_new(list, json_pack("{s:s, s:I}", "dtype", dtypes[own], "mistakes", count));
  }
  json_object_set_new(document, "untried", list);
}

static void add_sabotages(const ad_sabotages *sabotages, json_t *document) {
  json_t *list = json_array(), *unplanted = json_array();
  for (size_t i = 0; i < sabotages->count; i++) {
    const ad_sabotage *sabotage = &sabotages->list[i];
    if (sabotage->caught == AD_CAUGHT_UNTRIED) continue;
    if (sabotage->caught != AD_CAUGHT_UNPLANTED)
      json_array_append_new(list, sabotage_document(sabotage));
    else
      json_array_append_new(unplanted, json_pack("{s:s, s:s}", "name", sabotage->name, "why", sabotage->message));
  }
  json_object_set_new(document, "sabotage", list);
  json_object_set_new(document, "not_planted", unplanted);
  add_untried(sabotages, document);
  json_object_set_new(document, "coverage", coverage_document(sabotages));
  json_object_set_new(document, "survivors", json_integer((json_int_t)ad_sabotages_survivors(sabotages)));
}

/* The parameter whose error is the largest part of its bound; *share: that part. */
static const ad_proof_param *nearest(const ad_proof *proof, double *share) {
  const ad_proof_param *worst = &proof->params[0];
  *share = -1;
  for (size_t i = 0; i < proof->param_count; i++) {
    const ad_proof_param *param = &proof->params[i];
    double own = ad_param_share(param);
    if (own <= *share) continue;
    worst = param;
    *share = own;
    if (isnan(own)) break;
  }
  return worst;
}

/* The smallest cosine of all gradients; NaN if a gradient is zero and its reference is not, or the other way round. */
static double worst_cosine(const ad_proof *proof) {
  double worst = 1;
  for (size_t i = 0; i < proof->param_count; i++) {
    const ad_proof_param *param = &proof->params[i];
    if (isnan(param->cosine) && param->max_rel_err != 0) return NAN;
    if (param->cosine < worst) worst = param->cosine;
  }
  return worst;
}

static json_t *own_document(const ad_proof *proof) {
  double share;
  const ad_proof_param *worst = nearest(proof, &share);
  json_t *own = json_pack("{s:o, s:s, s:o, s:o, s:o, s:o, s:f, s:b}", "worst_share_of_bound", number(share), "param",
                          worst->name, "err", number(worst->max_rel_err), "one_process_err", number(worst->one_process),
                          "worst_cosine", number(worst_cosine(proof)), "process_share", number(proof->process_share),
                          "false_alarm", AD_FALSE_ALARMS, "pass", ad_proof_proves(proof, 0));
  add_overflow(&proof->overflow, own);
  json_object_set_new(own, "loss", error_document(proof->loss_err, proof->loss_bound));
  json_object_set_new(own, "norm", error_document(proof->norm_err, proof->norm_bound));
  add_counted(proof, json_object_get(own, "norm"));
  add_facts(proof, own);
  return own;
}

/* ---- the verdict, and the whole document ---- */

const char *ad_findings_reason(const ad_findings *findings) {
  if (!findings->proof->counted)
    return "nothing was counted: every gradient is zero in both, which shows nothing about sums; "
           "data.valid or the text leaves no token";
  if (findings->proof->complete && ad_proof_passes(findings->proof, findings->options->directional) &&
      !ad_proof_reached(findings->proof, findings->options->directional))
    return "no gradient reached any parameter: every gradient is zero in both, which shows nothing about sums; the "
           "loss depends on no parameter, is multiplied by 0, or has no label that counts";
  const ad_sabotages *sabotages = findings->sabotages;
  if (sabotages && !ad_sabotages_effective(sabotages) && !ad_sabotages_untried(sabotages, 0))
    return "no mutant changes a number, which shows nothing about what the check notices";
  return NULL;
}

int ad_findings_hold(const ad_findings *findings) {
  if (ad_findings_reason(findings)) return 0;
  if (!ad_proof_proves(findings->proof, findings->options->directional)) return 0;
  if (findings->own && !ad_proof_proves(findings->own, 0)) return 0;
  if (findings->slope && !ad_proof_passes(findings->slope, 1)) return 0;
  const ad_sabotages *sabotages = findings->sabotages;
  return !sabotages || (!ad_sabotages_survivors(sabotages) && !untried(sabotages));
}

/* The recipe's mesh: a text, or an object with one text for each module. */
static json_t *mesh_document(const ad_recipe *recipe) {
  if (recipe->mesh_count == 1) return json_string(recipe->meshes[0].text);
  json_t *meshes = json_object();
  for (size_t i = 0; i < recipe->mesh_count; i++)
    json_object_set_new(meshes, recipe->meshes[i].module, json_string(recipe->meshes[i].text));
  return meshes;
}

static void add_directional(const ad_proof *proof, json_t *document) {
  json_t *directional = json_pack("{s:o, s:o, s:o, s:f, s:b}", "difference", number(proof->difference), "derivative",
                                  number(proof->derivative), "rel_err", number(proof->directional_err), "bound",
                                  AD_DIRECTIONAL_BOUND, "pass", ad_proof_passes(proof, 1));
  if (proof->stopped[0] && !ad_proof_passes(proof, 1))
    json_object_set_new(directional, "changing_constant", json_string(proof->stopped));
  json_object_set_new(document, "directional", directional);
}

static const char *dtype_name(const ad_findings *findings) {
  if (findings->options->recipe_dtype) return "recipe";
  return ad_dtype_name(findings->options->dtype ? findings->options->dtype : AD_F64);
}

json_t *ad_findings_document(const ad_findings *findings) {
  const ad_proof *proof = findings->proof;
  int directional = findings->options->directional;
  json_t *document =
      json_pack("{s:s, s:I, s:o, s:s, s:s, s:I, s:f, s:{s:o, s:o}}", "recipe", findings->recipe->name, "world",
                (json_int_t)findings->world, "mesh", mesh_document(findings->recipe), "engine", findings->engine,
                "dtype", dtype_name(findings), "steps", (json_int_t)findings->steps, "seconds", findings->seconds,
                "loss", "dist", number(proof->loss_dist), "ref", directional ? json_null() : number(proof->loss_ref));
  if (!document) return NULL;
  if (!directional) {
    json_object_set_new(json_object_get(document, "loss"), "rel_err", number(proof->loss_err));
    json_object_set_new(json_object_get(document, "loss"), "bound", number(proof->loss_bound));
  }
  json_object_set_new(document, "norm",
                      json_pack("{s:o, s:o, s:o}", "dist", number(proof->norm_dist), "ref",
                                directional ? json_null() : number(proof->norm_ref), "rel_err",
                                directional ? json_null() : number(proof->norm_err)));
  if (!directional) json_object_set_new(json_object_get(document, "norm"), "bound", number(proof->norm_bound));
  if (!directional) add_counted(proof, json_object_get(document, "norm"));
  json_object_set_new(document, "params", params_document(findings));
  json_object_set_new(document, "summary", summary_document(findings));
  if (directional || findings->slope) add_directional(directional ? proof : findings->slope, document);
  if (findings->not_smooth) json_object_set_new(document, "not_smooth", json_string(findings->not_smooth));
  if (findings->own) json_object_set_new(document, "own_dtypes", own_document(findings->own));
  if (findings->sabotages) add_sabotages(findings->sabotages, document);
  json_object_set_new(document, "holds", json_boolean(ad_findings_hold(findings)));
  const char *reason = ad_findings_reason(findings);
  json_object_set_new(document, "reason", reason ? json_string(reason) : json_null());
  return document;
}
