/* Writes the findings of a decomposition as a JSON document, for the run's folder and its report. */
#include "decompose/showing.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include "addend/data.h"
#include "decompose/findings.h"

enum { USED = 8 };
static const char *const pass_names[AD_PASSES] = {"target",   "masked", "rounded", "stochastic",
                                                  "unmasked", "random", "largest"};

static size_t first_of(const ad_findings *found, size_t site) {
  return (size_t)ad_components_in(found->decomposition, 0, site);
}

static size_t components_of(const ad_findings *found, size_t site) {
  return (size_t)found->decomposition->sites[site].components;
}

static int64_t seq_of(const ad_findings *found) { return found->decomposition->options->target.decoder.data.seq; }

/* ---- writing cross-entropies ---- */

static double ratio(double sum, double count) { return count > 0 ? sum / count : 0; }
static double entropy_of(const ad_findings *found, int pass) { return ratio(found->entropy[pass], *found->counted); }

static const ad_text_data *text_of(const ad_decomposition *d) {
  size_t m = 0;
  while (!d->parts[m].is_here) m++;
  return d->parts[m].batch.data;
}

/* Returns the cross-entropy of the validation text under the frequencies of bytes in the training text. Each count is
 * increased by one, so that a byte that never occurs in training has a frequency above 0. */
static double unigram_entropy(const ad_findings *found) {
  int64_t count[AD_VOCABULARY_BYTES], all = 0;
  double sum = 0;
  for (size_t i = 0; i < AD_VOCABULARY_BYTES; i++) count[i] = 1;
  ad_text_data_count_values(text_of(found->decomposition), AD_TRAINING_PART, count);
  for (size_t i = 0; i < AD_VOCABULARY_BYTES; i++) all += count[i];
  for (size_t i = 0; i < AD_VOCABULARY_BYTES; i++) sum -= found->bytes[i] * log((double)count[i] / (double)all);
  return ratio(sum, *found->counted);
}

static json_t *entropies(const ad_findings *found) {
  json_t *document = json_object();
  for (int pass = 0; pass < AD_PASSES; pass++)
    json_object_set_new(document, pass_names[pass], json_real(entropy_of(found, pass)));
  json_object_set_new(document, "unigram", json_real(unigram_entropy(found)));
  json_object_set_new(document, "uniform", json_real(log(AD_VOCABULARY_BYTES)));
  return document;
}

static json_t *divergences(const ad_findings *found) {
  json_t *document = json_object();
  for (int pass = AD_PASS_TARGET + 1; pass < AD_PASSES; pass++)
    json_object_set_new(document, pass_names[pass], json_real(ratio(found->divergence[pass], *found->positions)));
  return document;
}

/* ---- writing the findings about each component ---- */

/* For a set of components: how many of them are active at a position, as a mean over positions, and how many are active
 * at any position. */
typedef struct activity {
  double above_zero, above_threshold;
  int64_t alive;
} activity;

static activity activity_of(const ad_findings *found, size_t first, size_t count) {
  activity of = {0, 0, 0};
  for (size_t c = first; c < first + count; c++) {
    of.above_zero += ad_findings_mean(found, c, AD_ABOVE_ZERO);
    of.above_threshold += ad_findings_mean(found, c, AD_ABOVE_THRESHOLD);
    of.alive += found->of_component[c * AD_PER_COMPONENT + AD_ABOVE_ZERO] > 0;
  }
  return of;
}

static activity activity_of_all(const ad_findings *found) {
  return activity_of(found, 0, (size_t)found->decomposition->components);
}

static json_t *active(activity of) {
  return json_pack("{s:f, s:f, s:I}", "above_zero", of.above_zero, "above_threshold", of.above_threshold, "alive",
                   (json_int_t)of.alive);
}

static double importance_of(const ad_findings *found, size_t component) {
  return ad_findings_mean(found, component, AD_IMPORTANCE);
}

/* Describes a component: its index within its site, its mean importance, and how often its importance is above 0. */
static json_t *described(const ad_findings *found, size_t component, size_t site) {
  return json_pack("{s:I, s:f, s:f}", "component", (json_int_t)(component - first_of(found, site)), "importance",
                   importance_of(found, component), "frequency", ad_findings_mean(found, component, AD_ABOVE_ZERO));
}

static json_t *used(const ad_findings *found, size_t site) {
  size_t most[USED], count = ad_findings_most(found, site, importance_of, USED, most);
  json_t *list = json_array();
  for (size_t i = 0; i < count; i++) json_array_append_new(list, described(found, most[i], site));
  return list;
}

/* ---- writing the sites ---- */

/* Returns ||W - V U|| / ||W|| over these sites; NAN (null in the document) if W is 0 and the error is not. */
static double relative_error(const ad_findings *found, size_t first, size_t count) {
  double errors = 0, sizes = 0;
  for (size_t site = first; site < first + count; site++) {
    errors += found->errors[site];
    sizes += found->sizes[site];
  }
  return errors > 0 && !(sizes > 0) ? NAN : sqrt(ratio(errors, sizes));
}

static json_t *json_number(double x) { return isfinite(x) ? json_real(x) : json_null(); }

static double error_of_all(const ad_findings *found) {
  return relative_error(found, 0, found->decomposition->site_count);
}

static json_t *site_document(const ad_findings *found, size_t site) {
  const ad_site *of = &found->decomposition->sites[site];
  activity own = activity_of(found, first_of(found, site), components_of(found, site));
  return json_pack("{s:s, s:I, s:I, s:I, s:o, s:o, s:o}", "name", of->name, "in", (json_int_t)of->in, "out",
                   (json_int_t)of->out, "components", (json_int_t)of->components, "relative_error",
                   json_number(relative_error(found, site, 1)), "active", active(own), "used", used(found, site));
}

static json_t *sites(const ad_findings *found) {
  json_t *list = json_array();
  for (size_t site = 0; site < found->decomposition->site_count; site++)
    json_array_append_new(list, site_document(found, site));
  return list;
}

/* ---- writing importances by position ---- */

static json_t *integers(const double *from, int64_t count, double factor) {
  json_t *list = json_array();
  for (int64_t i = 0; i < count; i++) json_array_append_new(list, json_integer((json_int_t)lround(factor * from[i])));
  return list;
}

/* Returns lists of values [samples, seq], each multiplied by `factor` and rounded. */
static json_t *sample_lists(const ad_findings *found, const double *from, double factor) {
  json_t *list = json_array();
  for (int64_t i = 0; i < found->samples; i++)
    json_array_append_new(list, integers(from + i * seq_of(found), seq_of(found), factor));
  return list;
}

static size_t site_of(const ad_findings *found, size_t component) {
  size_t site = 0;
  while (component >= first_of(found, site + 1)) site++;
  return site;
}

static json_t *shown_document(const ad_findings *found, size_t number) {
  size_t component = found->shown[number], site = site_of(found, component);
  const double *values = found->shown_values + (int64_t)number * found->samples * seq_of(found);
  json_t *document = described(found, component, site);
  json_object_set_new(document, "site", json_string(found->decomposition->sites[site].name));
  json_object_set_new(document, "hundredths", sample_lists(found, values, 100));
  return document;
}

static json_t *shown(const ad_findings *found) {
  json_t *list = json_array();
  for (size_t i = 0; i < found->shown_count; i++) json_array_append_new(list, shown_document(found, i));
  return list;
}

/* ---- writing the full document ---- */

AD_PRINTF(2, 3) static void add_line(json_t *to, const char *format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  json_array_append_new(to, json_string(text));
}

/* Returns lines of text that summarise the findings at the end of a training. */
static json_t *summary(const ad_findings *found) {
  const ad_decomposition *d = found->decomposition;
  activity of = activity_of_all(found);
  json_t *list = json_array();
  add_line(list, "validation cross-entropy: target %.4f, masked by importances %.4f, as many random components %.4f",
           entropy_of(found, AD_PASS_TARGET), entropy_of(found, AD_PASS_MASKED), entropy_of(found, AD_PASS_RANDOM));
  add_line(list, "active components per position: %.1f of %lld, %.1f above %g; %lld are needed anywhere", of.above_zero,
           (long long)d->components, of.above_threshold, AD_IMPORTANCE_THRESHOLD, (long long)of.alive);
  add_line(list, "||W - V U|| / ||W||: %.4f over %zu matri%s", error_of_all(found), d->site_count,
           d->site_count == 1 ? "x" : "ces");
  return list;
}

static char *document_of(const ad_findings *found) {
  json_t *document =
      json_pack("{s:o, s:I, s:I, s:I, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "summary", summary(found), "positions",
                (json_int_t)*found->positions, "counted", (json_int_t)*found->counted, "components",
                (json_int_t)found->decomposition->components, "threshold", AD_IMPORTANCE_THRESHOLD, "active",
                active(activity_of_all(found)), "cross_entropy", entropies(found), "divergence", divergences(found),
                "relative_error", json_number(error_of_all(found)), "sites", sites(found), "texts",
                sample_lists(found, found->shown_text, 1), "shown", shown(found));
  char *text = document ? json_dumps(document, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
  json_decref(document);
  return text;
}

ad_status ad_decompose_show(void *own, const ad_forward *forward, char **out) {
  ad_decomposition *d = own;
  ad_findings found;
  if (!(d->options->target.decoder.data.validation > 0) || !d->setting.evaluated) return AD_OK;
  ad_status status = ad_findings_collect(d, forward, &found);
  if (!status && ad_comm_rank(d->setting.comm) == 0) {
    *out = document_of(&found);
    if (!*out) status = ad_fail(AD_MEMORY, "no memory for the results of the decomposition");
  }
  ad_findings_release(&found);
  return status;
}
