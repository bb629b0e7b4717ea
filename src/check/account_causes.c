/* From the account of a step to the causes of a proof. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/account.h"
#include "check/computed.h"

/* Kinds of an account that are not a proof's own. */
static const struct {
  const char *name;
  ad_cause_kind kind;
} kinds[] = {{"own_only", AD_CAUSE_PARTIAL},
             {"last_microbatch", AD_CAUSE_MISSING},
             {"earlier_microbatches_divided", AD_CAUSE_AVERAGED},
             {"divided_by_own_count", AD_CAUSE_AVERAGED}};

static ad_cause_kind kind_of(const char *name) {
  for (int kind = 0; kind <= AD_CAUSE_UNKNOWN; kind++)
    if (!strcmp(name, ad_cause_name((ad_cause_kind)kind))) return (ad_cause_kind)kind;
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(name, kinds[i].name)) return kinds[i].kind;
  return AD_CAUSE_UNKNOWN;
}

/* The axis of `mesh` that goes over the same ranks as this one of another view of them; the axis itself: none. */
static ad_axis same_in(const ad_mesh *mesh, const ad_mesh *view, ad_axis axis) {
  for (int own = 0; own < AD_AXIS_COUNT; own++)
    if (ad_mesh_axis_size(mesh, (ad_axis)own) == ad_mesh_axis_size(view, axis) &&
        ad_mesh_stride(mesh, (ad_axis)own) == ad_mesh_stride(view, axis))
      return (ad_axis)own;
  return axis;
}

/* A dump calls an axis by its name in the first view that has it. Says it by the parameter's own name. */
static void rename_axis(ad_cause *cause, ad_axis from, ad_axis to) {
  char text[sizeof cause->text];
  const char *name = ad_axis_name(from), *at = strstr(cause->text, name);
  cause->axes = (cause->axes & ~AD_AXES(from)) | AD_AXES(to);
  if (!at) return;
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - cause->text), cause->text, ad_axis_name(to), at + strlen(name));
  memcpy(cause->text, text, sizeof text);
}

static const ad_mesh *view_with(const ad_prover *prover, size_t module, ad_axis axis) {
  for (size_t i = 0; i < prover->param_count; i++) {
    ad_run_param at = ad_run_param_at(prover->run, i);
    if (at.module == module && ad_mesh_axis_size(at.spec->layout.mesh, axis) > 1) return at.spec->layout.mesh;
  }
  return NULL;
}

static void say_in_own_view(const ad_prover *prover, const ad_run_param *at, ad_causes *causes) {
  const ad_mesh *own = at->spec->layout.mesh;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    const ad_mesh *view = view_with(prover, at->module, (ad_axis)axis);
    if (!view || ad_mesh_axis_size(own, (ad_axis)axis) > 1) continue;
    ad_axis to = same_in(own, view, (ad_axis)axis);
    for (int i = 0; i < causes->count && (int)to != axis; i++)
      if (causes->list[i].axes & AD_AXES(axis)) rename_axis(&causes->list[i], (ad_axis)axis, to);
  }
}

/* ---- from documents ---- */

static void add_cause(const json_t *document, ad_causes *out) {
  const char *kind, *axes, *text, *place = NULL;
  double factor = NAN;
  ad_axes over = 0;
  if (json_unpack((json_t *)(uintptr_t)document, "{s:s, s:s, s:s, s?:s}", "kind", &kind, "axes", &axes, "text", &text,
                  "place", &place))
    json_unpack((json_t *)(uintptr_t)document, "{s:s, s:s, s:s}", "kind", &kind, "axes", &axes, "text", &text);
  const json_t *number = json_object_get(document, "factor");
  if (json_is_number(number)) factor = json_number_value(number);
  if (!*axes || ad_axes_parse(axes, &over)) over = 0;
  ad_cause *cause = ad_causes_add(out, kind_of(kind), over, factor, "%s", text);
  snprintf(cause->place, sizeof cause->place, "%s", place ? place : "");
}

/* What was not done is the sum of the counts. */
static void say_own_count(const ad_prover *prover, ad_causes *causes) {
  for (size_t i = 0; i < prover->places.count; i++) {
    const ad_place *place = &prover->places.list[i];
    char names[80];
    if (!ad_place_is_count(place)) continue;
    causes->count = 0;
    ad_causes_add(causes, AD_CAUSE_AVERAGED, place->axes & place->large, NAN,
                  "each rank divided its loss by its own count: the sum of counts over %s was left out, or made over "
                  "fewer ranks",
                  ad_axes_print(place->axes & place->large, names, sizeof names));
    return;
  }
}

/* What the sum holds instead of what its types say; none: that, or something that no counts explain. */
static void take_causes(const json_t *judged, ad_causes *out) {
  const json_t *cause = json_object_get(judged, "cause"), *several = json_object_get(judged, "possible_causes");
  size_t i;
  const json_t *one;
  out->count = 0;
  if (json_is_object(cause)) add_cause(cause, out);
  json_array_foreach(several, i, one) add_cause(one, out);
}

static int is_kind(const json_t *judged, const char *kind) {
  const char *own = json_string_value(json_object_get(judged, "kind"));
  return own && !strcmp(own, kind);
}

static const json_t *find(const json_t *document, const char *name) {
  const json_t *params = json_object_get(document, "params"), *param;
  size_t i;
  json_array_foreach(params, i, param) {
    const char *own = json_string_value(json_object_get(param, "name"));
    if (own && !strcmp(own, name)) return param;
  }
  return NULL;
}

/* Copies along axes over which nothing is summed differ where what ranks handed in does. */
static int is_sum_of_addends(const json_t *judged, const ad_run_param *at, ad_axes differs) {
  ad_axes reduced = ad_proof_reduced_axes(&at->spec->layout);
  if (is_kind(judged, "right") || is_kind(judged, "identical_addends")) return 1;
  return (is_kind(judged, "own_only") || is_kind(judged, "replicas_differ")) && differs && !(differs & reduced);
}

static int is_wrong(const ad_prover *prover, size_t index, const ad_proof_param *param) {
  return !prover->replicas[AD_PART_GRADIENT][index].equal || !(ad_param_share(param) <= 1);
}

void ad_account_judge(const ad_prover *prover, const json_t *document, size_t index, ad_proof_param *param) {
  const ad_replicas *copies = &prover->replicas[AD_PART_GRADIENT][index];
  ad_run_param at = ad_run_param_at(prover->run, index);
  const json_t *judged = document ? find(document, param->name) : NULL;
  ad_causes causes;
  if (!is_wrong(prover, index, param)) return;
  if (param->causes.count && param->causes.list[0].kind == AD_CAUSE_ROUNDING) return;
  param->accounted = !judged                                                               ? AD_NO_ACCOUNT
                     : is_sum_of_addends(judged, &at, copies->equal ? 0 : copies->differs) ? AD_ADDENDS_ARE_WRONG
                                                                                           : AD_SUM_IS_WRONG;
  if (param->accounted != AD_SUM_IS_WRONG || is_kind(judged, "unexplained") || is_kind(judged, "rounding")) return;
  if (is_kind(judged, "replicas_differ") && param->causes.list[0].kind != AD_CAUSE_REPLICAS_DIFFER) return;
  take_causes(judged, &causes);
  if (is_kind(judged, "divided_by_own_count")) say_own_count(prover, &causes);
  say_in_own_view(prover, &at, &causes);
  if (causes.count) ad_causes_copy(&param->causes, &causes);
}
