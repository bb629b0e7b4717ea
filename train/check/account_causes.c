/* Turns the judgement of `addend diff` on a parameter into the causes that a check names. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check/account.h"
#include "check/computed.h"
#include "check/no_axis.h"
#include "say/cause.h"
#include "module/module.h"
#include "step/run.h"
#include "mesh/mesh.h"

/* Returns the axes of mesh `own` that span the same ranks as `axes` of `view`, another view of the same ranks; 0 if
 * none do. */
static ad_axes same_in(const ad_mesh *own, const ad_mesh *view, ad_axes axes) {
  ad_axes in_own[AD_AXIS_COUNT], in_view[AD_AXIS_COUNT], same = 0, covered = 0;
  int pairs = ad_mesh_common_sets(own, view, in_own, in_view);
  for (int i = 0; i < pairs; i++) {
    if (in_view[i] & ~axes) continue;
    same |= in_own[i];
    covered |= in_view[i];
  }
  return covered == axes ? same : 0;
}

/* Finds the list of axes in `text` that has exactly the axes `axes`, in any order. Returns the start of the list, and
 * sets *length to its number of characters. */
static const char *find_axes(const char *text, ad_axes axes, size_t *length) {
  char names[80];
  ad_axes named;
  for (const char *at = text; *at; at += *length ? *length : 1) {
    *length = strspn(at, "abcdefghijklmnopqrstuvwxyz_,");
    size_t own = *length && at[*length - 1] == ',' ? *length - 1 : *length;
    if (!own || own >= sizeof names) continue;
    snprintf(names, sizeof names, "%.*s", (int)own, at);
    if (ad_axes_parse(names, &named) || named != axes) continue;
    *length = own;
    return at;
  }
  return NULL;
}

/* Replaces the axes of a cause, also in its text. */
static void rename_axes(ad_cause *cause, ad_axes to) {
  char text[sizeof cause->text], names[80];
  size_t length;
  const char *at = find_axes(cause->text, cause->axes, &length);
  cause->axes = to;
  if (!at) return;
  snprintf(text, sizeof text, "%.*s%s%s", (int)(at - cause->text), cause->text, ad_axes_print(to, names, sizeof names),
           at + length);
  memcpy(cause->text, text, sizeof text);
}

/* Renames a cause's axes to those of the parameter's own mesh. A dump names each axis as the first view that has it, so
 * the axes of one cause may belong to two views. */
static void report_in_own_view(const ad_checker *checker, const ad_run_param *at, ad_cause *cause) {
  const ad_mesh *own = at->spec->layout.mesh;
  ad_axes kept = cause->axes & ad_mesh_large(own), others = cause->axes & ~kept;
  if (!others) return;
  for (size_t i = 0; i < checker->param_count; i++) {
    ad_run_param other = ad_run_param_at(checker->run, i);
    if (other.module != at->module) continue;
    ad_axes same = same_in(own, other.spec->layout.mesh, others);
    if (!same) continue;
    rename_axes(cause, kept | same);
    return;
  }
}

/* ---- turning a diff's document into causes ---- */

/* Adds the cause that one JSON object of the judgement describes. */
static void add_cause(const json_t *judged, const json_t *document, ad_causes *out) {
  const char *kind, *axes, *text, *place = NULL;
  double factor = NAN;
  ad_axes over = 0;
  if (json_unpack((json_t *)(uintptr_t)document, "{s:s, s:s, s:s, s?:s}", "kind", &kind, "axes", &axes, "text", &text,
                  "place", &place))
    json_unpack((json_t *)(uintptr_t)document, "{s:s, s:s, s:s}", "kind", &kind, "axes", &axes, "text", &text);
  const json_t *number = json_object_get(document, "factor");
  if (json_is_number(number)) factor = json_number_value(number);
  if (!*axes || ad_axes_parse(axes, &over)) over = 0;
  ad_cause_kind checked = ad_cause_row_of(ad_cause_named(kind))->checked;
  ad_cause *cause = ad_causes_add(out, checked, over, factor, "%s", text);
  snprintf(cause->place, sizeof cause->place, "%s", place ? place : "");
  if (!over && strcmp(cause->place, AD_MICROBATCHES) != 0) cause->no_axis = ad_no_axis_of_counts(judged);
}

/* Replaces the causes by one if ranks divided their losses by different counts. The cause's axes are those of the
 * counts, whatever the parameter's view is. */
static void report_own_count(const ad_reported_counts *counts, ad_causes *causes) {
  char names[80];
  if (!counts->within && !counts->beside) return;
  causes->count = 0;
  if (counts->within)
    ad_causes_add(causes, AD_CAUSE_AVERAGED, counts->within, NAN,
                  "each rank divided its loss by its own count: the sum of counts over %s was left out, or made over "
                  "fewer ranks",
                  ad_axes_print(counts->within, names, sizeof names));
  else
    ad_causes_add(causes, AD_CAUSE_UNKNOWN, counts->beside, NAN,
                  "ranks along %s have the same rows, but divided their losses by different counts: some of these "
                  "ranks read other rows, or counted the rows otherwise",
                  ad_axes_print(counts->beside, names, sizeof names));
}

/* Reads the causes of a wrong sum from the judgement of `addend diff` on a parameter. There are no causes if the sum is
 * right by its types, or if no counts of addends give the sum. */
static void take_causes(const json_t *judged, ad_causes *out) {
  const json_t *cause = json_object_get(judged, "cause"), *several = json_object_get(judged, "possible_causes");
  size_t i;
  const json_t *one;
  out->count = 0;
  if (json_is_object(cause)) add_cause(judged, cause, out);
  json_array_foreach(several, i, one) add_cause(judged, one, out);
}

static const json_t *find_param(const json_t *document, const char *name) {
  const json_t *params = json_object_get(document, "params"), *param;
  size_t i;
  json_array_foreach(params, i, param) {
    const char *own = json_string_value(json_object_get(param, "name"));
    if (own && !strcmp(own, name)) return param;
  }
  return NULL;
}

/* Returns 1 if a cause of this kind means that the sum is right for its addends. It may also be right if replicas
 * differ only along axes over which nothing is summed, because the addends of the ranks differ. */
static int is_sum_of_addends(ad_cause_kind kind, const ad_run_param *at, ad_axes differs) {
  ad_axes reduced = ad_check_reduced_axes(&at->spec->layout);
  if (kind == AD_CAUSE_RIGHT || kind == AD_CAUSE_IDENTICAL) return 1;
  return (kind == AD_CAUSE_OWN_ONLY || kind == AD_CAUSE_REPLICAS_DIFFER) && differs && !(differs & reduced);
}

/* Reads the cause if each microbatch's addends differ from the reference's by one factor only: then the addends are
 * wrong, not the sum. */
static void take_weights(const json_t *judged, ad_check_param *param) {
  const json_t *cause = json_object_get(json_object_get(judged, "reference"), "cause");
  const char *place = json_string_value(json_object_get(cause, "place"));
  if (!place || strcmp(place, AD_MICROBATCHES)) return;
  param->accounted = AD_ADDENDS_ARE_WEIGHED;
  param->causes.count = 0;
  add_cause(judged, cause, &param->causes);
}

static int is_wrong(const ad_checker *checker, size_t index, const ad_check_param *param) {
  return !checker->replicas[AD_PART_GRADIENT][index].equal || !(ad_param_share(param) <= 1);
}

void ad_account_judge(const ad_checker *checker, const json_t *document, size_t index, ad_check_param *param) {
  const ad_replicas *of_gradient = &checker->replicas[AD_PART_GRADIENT][index];
  ad_run_param at = ad_run_param_at(checker->run, index);
  const json_t *judged = document ? find_param(document, param->name) : NULL;
  ad_cause_kind kind = ad_cause_named(json_string_value(json_object_get(judged, "kind")));
  ad_causes causes;
  if (!is_wrong(checker, index, param)) return;
  if (param->causes.count && param->causes.list[0].kind == AD_CAUSE_ROUNDING) return;
  param->accounted = !judged ? AD_NO_ACCOUNT
                     : is_sum_of_addends(kind, &at, of_gradient->equal ? 0 : of_gradient->differs)
                         ? AD_ADDENDS_ARE_WRONG
                         : AD_SUM_IS_WRONG;
  if (param->accounted == AD_ADDENDS_ARE_WRONG) take_weights(judged, param);
  if (param->accounted != AD_SUM_IS_WRONG) return;
  /* If no counts of addends give the sum, `addend diff` names causes about a job's own collectives. The check knows the
   * program's transitions and finds better causes. */
  if (!ad_cause_row_of(kind)->counted || kind == AD_CAUSE_ROUNDING) return;
  if (kind == AD_CAUSE_REPLICAS_DIFFER && param->causes.list[0].kind != AD_CAUSE_REPLICAS_DIFFER) return;
  take_causes(judged, &causes);
  /* Shards of few elements that were summed with each other may, by chance, fit some factors of their addends as
   * well. */
  if (param->causes.list[0].kind == AD_CAUSE_WRONG_GROUP && causes.count && causes.list[0].kind == AD_CAUSE_UNKNOWN)
    return;
  if (kind == AD_CAUSE_OWN_COUNT)
    report_own_count(&checker->reported_counts, &causes);
  else
    for (int i = 0; i < causes.count; i++) report_in_own_view(checker, &at, &causes.list[i]);
  /* A dump of one module does not show the other modules, but the sum may be off by the number of their ranks. */
  if (param->proportional)
    ad_diagnose_averages(ad_run_program(checker->run), at.module, at.spec->layout.mesh,
                         ad_check_reduced_axes(&at.spec->layout), &causes);
  if (causes.count) ad_causes_copy(&param->causes, &causes);
}
