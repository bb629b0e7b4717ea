/* Finds how often the job's reported gradient norm counted each parameter. Two mistakes are considered: every replica
 * along some axes was counted, or one parameter was counted several times or never. */
#include "say/norm.h"

#include <math.h>
#include <stdio.h>
#include "say/cause.h"
#include "say/document.h"
#include "files/json.h"

/* The reported norm that is judged, and the numbers with which it is compared. */
typedef struct ad_norm {
  const ad_dump *dump;
  const ad_norm_term *terms;
  /* the reported norm; the squared norm of the sums; how much that square may be wrong */
  double reported, square, tolerance;
} ad_norm;

/* Returns the squared norm of the sums if every replica along `axes` is counted, not only the first. */
static double square_with(const ad_norm *norm, uint32_t axes) {
  double square = 0;
  for (size_t p = 0; p < norm->dump->param_count; p++)
    square += norm->terms[p].square * (double)ad_dump_axes_size(&norm->dump->mesh, norm->terms[p].replicated & axes);
  return square;
}

/* Returns 1 if `square` equals the square of the reported norm, within the tolerance. */
static int is_reported(const ad_norm *norm, double square) {
  double reported = norm->reported * norm->reported, larger = fmax(square, norm->square);
  return fabs(square - reported) <= norm->tolerance * (norm->square > 0 ? larger / norm->square : 1);
}

/* Returns a rank whose norm differs from the first reported norm, or -1 if all reported norms are the same. *reported
 * is the first reported norm, or NaN if no rank reports one. */
static int64_t find_other(const ad_dump *dump, double *reported) {
  *reported = NAN;
  for (int64_t rank = 0; rank < dump->mesh.world; rank++) {
    double own = dump->sums[rank]->norm;
    if (isnan(own)) continue;
    if (isnan(*reported)) *reported = own;
    if (fabs(own - *reported) > 1e-6 * fabs(*reported)) return rank;
  }
  return -1;
}

static void measure_all(ad_norm *norm) {
  double variance = 0;
  norm->square = 0;
  for (size_t p = 0; p < norm->dump->param_count; p++) {
    norm->square += norm->terms[p].square;
    variance += norm->terms[p].variance;
  }
  /* 1e-4 for a norm that was computed in f32, and six standard errors for the estimate from samples. */
  norm->tolerance = 1e-4 * norm->square + 6 * sqrt(variance);
}

/* Makes a JSON list of the parameters that have replicas along `axes`, and how often each was counted. */
static json_t *counted(const ad_norm *norm, uint32_t axes) {
  json_t *list = json_array();
  for (size_t p = 0; p < norm->dump->param_count; p++) {
    int64_t times = ad_dump_axes_size(&norm->dump->mesh, norm->terms[p].replicated & axes);
    if (times != 1)
      json_array_append_new(
          list, json_pack("{s:o, s:I}", "name", ad_json_text(norm->dump->params[p].name), "times", (json_int_t)times));
  }
  return list;
}

/* The causes found so far. `counted` lists the parameters that were not counted exactly once, if all causes agree on
 * them, else it is []. */
typedef struct ad_norm_causes {
  json_t *list, *counted; /* counted NULL: there is no cause yet */
} ad_norm_causes;

/* Adds a cause; takes ownership of `counted`. */
static void add_cause(ad_norm_causes *causes, int doubled, const char *axes, double times, json_t *counted,
                      const char *text) {
  json_array_append_new(causes->list, ad_cause_document(ad_cause_name(doubled ? AD_CAUSE_DOUBLED : AD_CAUSE_MISSING),
                                                        axes, times, text, ""));
  if (!causes->counted)
    causes->counted = json_incref(counted);
  else if (!json_equal(causes->counted, counted))
    json_array_clear(causes->counted);
  json_decref(counted);
}

/* Adds a cause for every set of axes that gives the reported norm if each replica along these axes is counted; sets of
 * fewer axes first. */
static void add_axes(const ad_norm *norm, ad_norm_causes *causes) {
  uint32_t replicated = 0;
  char names[AD_DUMP_AXES * AD_DUMP_NAME], text[AD_DUMP_AXES * AD_DUMP_NAME + 40];
  for (size_t p = 0; p < norm->dump->param_count; p++) replicated |= norm->terms[p].replicated;
  for (int count = 1; count <= __builtin_popcount(replicated); count++)
    for (uint32_t axes = 1; axes <= replicated; axes++) {
      if (axes & ~replicated || __builtin_popcount(axes) != count || !is_reported(norm, square_with(norm, axes)))
        continue;
      ad_dump_axes_print(&norm->dump->mesh, axes, names, sizeof names);
      snprintf(text, sizeof text, "each replica along %s was counted", names);
      add_cause(causes, 1, names, NAN, counted(norm, axes), text);
    }
}

/* Adds a cause for every parameter that gives the reported norm if it is counted 0, 2, 3 or more times. */
static void add_params(const ad_norm *norm, ad_norm_causes *causes) {
  double left = norm->reported * norm->reported - norm->square;
  for (size_t p = 0; p < norm->dump->param_count; p++) {
    const char *name = norm->dump->params[p].name;
    /* adding 0.0 turns -0 into 0 */
    double square = norm->terms[p].square, count = 1 + left / square, whole = round(count) + 0.0;
    char text[160];
    if (!(square > 2 * norm->tolerance) || whole < 0 || whole == 1 || whole > (double)norm->dump->mesh.world ||
        fabs(count - whole) * square > norm->tolerance)
      continue;
    snprintf(text, sizeof text, "`%.80s` was counted %.0f times", name, whole);
    json_t *list = json_pack("[{s:o, s:I}]", "name", ad_json_text(name), "times", (json_int_t)whole);
    add_cause(causes, whole > 0, "", whole, list, text);
  }
}

/* Finds the causes of a wrong norm, and writes the text that names them. */
static ad_norm_causes explain(const ad_norm *norm, char *text, size_t size) {
  ad_norm_causes causes = {.list = json_array()};
  double computed = sqrt(norm->square);
  char words[480];
  add_axes(norm, &causes);
  add_params(norm, &causes);
  if (json_array_size(causes.list))
    snprintf(text, size, "reported %.7g, but the norm of the sums is %.7g: %s", norm->reported, computed,
             ad_causes_print(causes.list, words, sizeof words));
  else
    snprintf(text, size,
             "reported %.7g, but the norm of the sums is %.7g (%.6g times): no count of replicas explains it",
             norm->reported, computed, norm->reported / computed);
  return causes;
}

json_t *ad_norm_document(const ad_dump *dump, const ad_norm_term *terms, int *holds) {
  ad_norm norm = {.dump = dump, .terms = terms};
  char text[640];
  int64_t other = find_other(dump, &norm.reported);
  ad_norm_causes causes = {0};
  *holds = 1;
  if (isnan(norm.reported)) return json_null();
  measure_all(&norm);
  *holds = other < 0 && is_reported(&norm, norm.square);
  if (other >= 0)
    snprintf(text, sizeof text, "ranks report different norms: %.7g, and %.7g on rank %lld", norm.reported,
             dump->sums[other]->norm, (long long)other);
  else if (*holds)
    snprintf(text, sizeof text, "reported %.7g, which is the norm of the sums", norm.reported);
  else
    causes = explain(&norm, text, sizeof text);
  json_t *document =
      json_pack("{s:f, s:o, s:b, s:s, s:o}", "reported", norm.reported, "computed", ad_diff_number(sqrt(norm.square)),
                "pass", *holds, "text", text, "counted", causes.counted ? causes.counted : json_array());
  ad_cause_set(document, causes.list ? causes.list : json_array());
  return document;
}
