/* Prints the document of a check as tables. */
#include <math.h>
#include <string.h>

#include "addend/check.h"
#include "base/error.h"
#include "files/printed.h"
#include "base/text.h"
#include "say/cause.h"
#include "check/no_axis.h"
#include "check/planting.h"

enum { CAUSES = 640 }; /* bytes of a line of causes */

static int is_true(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

/* The mesh as text; if modules have meshes of their own, all of them: "encoder: dp=2, model: dp=4". */
static const char *mesh_of(const json_t *document, char *buffer, size_t size) {
  json_t *mesh = json_object_get(document, "mesh");
  if (!json_is_object(mesh)) return ad_text_of(document, "mesh");
  const char *module;
  json_t *text;
  ad_text all = ad_text_on(buffer, size);
  json_object_foreach(mesh, module, text)
      ad_text_add(&all, "%s%s: %s", all.used ? ", " : "", module, json_string_value(text));
  return buffer;
}

static void print_head(FILE *file, const json_t *document, const ad_paint *paint) {
  char mesh[256];
  const json_t *loss = json_object_get(document, "loss"), *norm = json_object_get(document, "norm");
  long long ranks = ad_integer_of(document, "world");
  long long steps = ad_integer_of(document, "steps");
  fprintf(file, "%s%s%s  %lld rank%s, mesh %s, %s, %lld step%s\n", paint->bold, ad_text_of(document, "recipe"),
          paint->off, ranks, ad_plural(ranks), mesh_of(document, mesh, sizeof mesh), ad_text_of(document, "dtype"),
          steps, ad_plural(steps));
  fprintf(file, "loss %.12g", ad_number_of(loss, "dist"));
  if (json_is_number(json_object_get(loss, "ref"))) fprintf(file, ", reference %.12g", ad_number_of(loss, "ref"));
  fprintf(file, "; gradient norm %.12g", ad_number_of(norm, "dist"));
  if (json_is_number(json_object_get(norm, "ref"))) fprintf(file, ", reference %.12g", ad_number_of(norm, "ref"));
  fprintf(file, "\n");
}

/* Prints by how much the closest choice of experts was made. */
static void print_margin(FILE *file, const json_t *document) {
  const json_t *summary = json_object_get(document, "summary");
  if (json_object_get(summary, "smallest_margin"))
    fprintf(file, "\n  smallest margin of a choice %.2g\n", ad_number_of(summary, "smallest_margin"));
}

static int param_holds(const json_t *param) {
  return is_true(param, "replicas_equal") && ad_number_of(param, "max_rel_err") <= ad_number_of(param, "bound") &&
         !ad_cause_is_told(param);
}

/* Whether no token counted, or no gradient reached a parameter: then every gradient is zero, and numbers that agree
 * prove nothing. */
static int measures_nothing(const json_t *document) {
  const json_t *summary = json_object_get(document, "summary");
  return ad_number_of(summary, "counted") == 0 || ad_number_of(summary, "reached") == 0;
}

/* Whether some step had a gradient of the parameter that is not zero. */
static int is_reached(const json_t *param) { return !json_is_false(json_object_get(param, "reached")); }

/* Prints the word before a row: BAD, ok, or - where nothing is proven. */
static void print_word(FILE *file, int holds, int proves, const ad_paint *paint) {
  const char *colour = !holds ? paint->bad : proves ? paint->good : paint->dim;
  fprintf(file, "  %s%-4s%s ", colour, !holds ? "BAD" : proves ? "ok" : "-", paint->off);
}

/* Whether the parameter was proven in dtypes that round; its row then has the error of one process in these dtypes. */
static int is_rounded(const json_t *param) { return json_object_get(param, "one_process_err") != NULL; }

/* Prints why no axis is named, where a mistake or its only cause has none. The row of a mistake that no number shows
 * says so itself. */
static void print_no_axis(FILE *file, const json_t *judged) {
  const json_t *of = json_object_get(judged, "no_axis") ? judged : json_object_get(judged, "cause");
  const char *why = ad_text_of(of, "no_axis"), *clause = ad_no_axis_clause(why);
  if (*clause && strcmp(why, ad_no_axis_name(AD_NO_AXIS_NO_NUMBER))) fprintf(file, " (no axis: %s)", clause);
}

static void print_param(FILE *file, const json_t *param, int proves, const ad_paint *paint) {
  const char *over = ad_text_of(param, "reduced_over");
  print_word(file, param_holds(param), proves && is_reached(param), paint);
  fprintf(file, "%-24s %-26s %-11.9g %-10.2g %-8s", ad_text_of(param, "name"), *over ? over : "-",
          ad_number_of(param, "ratio"), ad_number_of(param, "max_rel_err"),
          is_true(param, "replicas_equal") ? "equal" : "DIFFER");
  if (is_rounded(param)) fprintf(file, " %-11.2g", ad_number_of(param, "one_process_err"));
  char causes[CAUSES];
  if (ad_cause_is_told(param))
    fprintf(file, " %s%s%s", paint->bad, ad_cause_print(param, causes, sizeof causes), paint->off);
  else if (!is_reached(param))
    fprintf(file, " no gradient reached it");
  print_no_axis(file, param);
  fprintf(file, "\n");
}

/* A proof in the recipe's own dtypes also judges all gradients as one vector. Prints a line only if that fails. */
static void print_process(FILE *file, const json_t *summary) {
  double share = ad_number_of(summary, "process_share");
  if (json_object_get(summary, "process_share") && !(share <= 1))
    fprintf(file, "    all gradients together are %.4g times as far from one process's as rounding allows\n", share);
}

/* The cosine by which parameters are ordered. One without a cosine (a gradient of zeros) is 1 if the reference is
 * zero too, and comes before all others if not. */
static double cosine_of(const json_t *param) {
  double cosine = ad_number_of(param, "cosine");
  return !isnan(cosine) ? cosine : ad_number_of(param, "max_rel_err") == 0 ? 1 : -2;
}

static void print_angle(FILE *file, double cosine) {
  if (isnan(cosine))
    fprintf(file, "undefined");
  else
    fprintf(file, "%.12g", cosine);
}

/* Prints the parameter whose gradient points furthest from its reference. */
static void print_cosine(FILE *file, const json_t *params) {
  const json_t *param, *worst = json_array_get(params, 0);
  size_t i;
  json_array_foreach(params, i, param) if (cosine_of(param) < cosine_of(worst)) worst = param;
  fprintf(file, "\n  smallest cosine to the reference ");
  print_angle(file, ad_number_of(worst, "cosine"));
  fprintf(file, ", of `%s`\n", ad_text_of(worst, "name"));
}

/* Prints how many steps were skipped because a gradient overflowed: the proof says nothing of those. */
static void print_overflow(FILE *file, const json_t *document, const json_t *of) {
  const json_t *overflow = json_object_get(of, "overflow");
  if (!overflow) return;
  long long skipped = ad_integer_of(overflow, "steps");
  fprintf(
      file,
      "    %lld of %lld steps overflowed at scale 2^%lld in `%s` and %s skipped, as in training; proven at 2^%lld\n",
      skipped, ad_integer_of(document, "steps"), ad_integer_of(overflow, "scale"), ad_text_of(overflow, "param"),
      skipped == 1 ? "was" : "were", ad_integer_of(overflow, "proven_at"));
}

static void print_params(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *params = json_object_get(document, "params"), *param;
  size_t i;
  if (!json_array_size(params)) return;
  int rounded = is_rounded(json_array_get(params, 0));
  fprintf(file, "\n  %s%-4s %-24s %-26s %-11s %-10s %-8s%s%s\n", paint->dim, "", "parameter", "summed over", "ratio",
          rounded ? "error" : "worst err", "replicas", rounded ? " one process" : "", paint->off);
  json_array_foreach(params, i, param) print_param(file, param, !measures_nothing(document), paint);
  if (rounded) print_cosine(file, params);
  print_overflow(file, document, json_object_get(document, "summary"));
}

static void print_directional(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *directional = json_object_get(document, "directional");
  if (!directional) return;
  fprintf(file, "\n  difference quotient %.12g, <gradient, direction> %.12g: relative error %.2g, bound %.0e\n",
          ad_number_of(directional, "difference"), ad_number_of(directional, "derivative"),
          ad_number_of(directional, "rel_err"), ad_number_of(directional, "bound"));
  int is_alone = !json_array_size(json_object_get(document, "params"));
  int others_hold = is_true(json_object_get(document, "summary"), "pass");
  if (is_alone || !others_hold || is_true(directional, "pass")) return;
  const char *constant = ad_text_of(directional, "changing_constant");
  fprintf(file, "  %sBAD%s  the gradient is not the slope of the loss", paint->bad, paint->off);
  if (*constant)
    fprintf(file, ": at %s a constant changes with the parameters, and no gradient goes through it", constant);
  fprintf(file,
          "\n       possible causes: a value is made a constant that should carry a gradient; an operation of the "
          "program's own has a wrong backward;\n       or it is meant so, or the loss is not smooth: then name that in "
          "the program's rules.not_smooth\n");
}

/* Says why the slope of a custom program's loss was not taken. */
static void print_not_smooth(FILE *file, const json_t *document) {
  const char *why = ad_text_of(document, "not_smooth");
  if (*why)
    fprintf(file, "\n  the slope of the loss was not compared with the gradient, as the program says: %s\n", why);
}

static void print_sabotage(FILE *file, const json_t *sabotage, const ad_paint *paint) {
  const char *caught = ad_text_of(sabotage, "caught_by"), *message = ad_text_of(sabotage, "message");
  int survived = strcmp(caught, "none") == 0;
  fprintf(file, "  %s%-9s%s %-42s", survived ? paint->bad : paint->good, survived ? "SURVIVED" : caught, paint->off,
          ad_text_of(sabotage, "name"));
  char causes[CAUSES];
  int is_told = ad_cause_is_told(sabotage);
  if (json_is_number(json_object_get(sabotage, "ratio")))
    fprintf(file, " ratio %-10.6g", ad_number_of(sabotage, "ratio"));
  if (is_told) fprintf(file, " %s: %s", ad_text_of(sabotage, "param"), ad_cause_print(sabotage, causes, sizeof causes));
  if (*message) fprintf(file, " %.*s", (int)strcspn(message, "\n"), message);
  if (strcmp(caught, "number") == 0 && !is_told)
    fprintf(file, " the loss, the norm or an update is off, or ranks differ in the loss or the norm");
  print_no_axis(file, sabotage);
  fprintf(file, "\n");
}

static void print_unplanted(FILE *file, const json_t *list, const ad_paint *paint) {
  const json_t *unplanted;
  size_t i;
  if (!json_array_size(list)) return;
  fprintf(file, "\n  %snot planted, for they would change nothing here%s\n", paint->dim, paint->off);
  json_array_foreach(list, i, unplanted)
      fprintf(file, "  %-9s %-42s %s\n", "-", ad_text_of(unplanted, "name"), ad_text_of(unplanted, "why"));
}

/* How many mistakes of one operator were caught in one way; `caught` NULL: in any way. */
static long long count_of(const json_t *sabotages, const char *operator_, const char *caught) {
  const json_t *sabotage;
  long long count = 0;
  size_t i;
  json_array_foreach(sabotages, i, sabotage) {
    const json_t *derived = json_object_get(sabotage, "derived");
    int is_of = json_is_object(derived) && !strcmp(ad_text_of(derived, "operator"), operator_);
    count += is_of && (!caught || !strcmp(ad_text_of(sabotage, "caught_by"), caught));
  }
  return count;
}

static void print_operator(FILE *file, const json_t *sabotages, const char *operator_) {
  static const char *const caught[] = {"type", "number", "protocol", "no_effect", "none"};
  if (!count_of(sabotages, operator_, NULL)) return;
  fprintf(file, "  %-24s", operator_);
  for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
    fprintf(file, "%12lld", count_of(sabotages, operator_, caught[i]));
  fprintf(file, "\n");
}

static long long of_coverage(const json_t *document, const char *key) {
  return ad_integer_of(json_object_get(document, "coverage"), key);
}

static void print_coverage(FILE *file, const json_t *document, const json_t *sabotages, const ad_paint *paint) {
  if (!of_coverage(document, "mistakes")) return;
  fprintf(file, "\n  %smistakes derived from the program's own transitions, by what was done to them%s\n", paint->dim,
          paint->off);
  fprintf(file, "  %s%-24s%12s%12s%12s%12s%12s%s\n", paint->dim, "", "by type", "by number", "by protocol", "no effect",
          "survived", paint->off);
  for (int op = 0; op < AD_OPERATOR_COUNT; op++) print_operator(file, sabotages, ad_operator_name((ad_operator)op));
  if (of_coverage(document, "drawn_from") > of_coverage(document, "mistakes"))
    fprintf(file, "  drawn by seed %lld from %lld mistakes\n", of_coverage(document, "seed"),
            of_coverage(document, "drawn_from"));
  fprintf(file, "  %lld places, %lld mistakes: %lld refused by type, %lld caught by number, ",
          of_coverage(document, "places"), of_coverage(document, "mistakes"), of_coverage(document, "by_type"),
          of_coverage(document, "by_number"));
  if (of_coverage(document, "by_protocol")) fprintf(file, "%lld by protocol, ", of_coverage(document, "by_protocol"));
  fprintf(file, "%lld without effect, %lld survived\n", of_coverage(document, "no_effect"),
          of_coverage(document, "survived"));
}

static int is_derived(const json_t *sabotage) { return json_is_object(json_object_get(sabotage, "derived")); }
static int has_survived(const json_t *sabotage) { return !strcmp(ad_text_of(sabotage, "caught_by"), "none"); }

/* Prints why derived mistakes were without effect: each reason once, with the number of its mistakes. */
static void print_reasons(FILE *file, const json_t *sabotages, const ad_paint *paint) {
  enum { REASONS = 16 };
  const char *reasons[REASONS];
  long long counts[REASONS] = {0};
  size_t i, known = 0;
  const json_t *sabotage;
  json_array_foreach(sabotages, i, sabotage) {
    size_t k = 0;
    if (!is_derived(sabotage) || strcmp(ad_text_of(sabotage, "caught_by"), "no_effect") != 0) continue;
    while (k < known && strcmp(reasons[k], ad_text_of(sabotage, "message")) != 0) k++;
    if (k == REASONS) continue;
    if (k == known) reasons[known++] = ad_text_of(sabotage, "message");
    counts[k]++;
  }
  for (size_t k = 0; k < known; k++)
    fprintf(file, "  %swithout effect, %lld:%s %s\n", paint->dim, counts[k], paint->off, reasons[k]);
}

/* Prints a line for each derived mistake that survived; those that were caught have none. */
static void print_survivors(FILE *file, const json_t *sabotages, const ad_paint *paint) {
  const json_t *sabotage;
  size_t i;
  json_array_foreach(sabotages, i, sabotage) {
    if (is_derived(sabotage) && has_survived(sabotage)) print_sabotage(file, sabotage, paint);
  }
}

/* Prints how many mistakes were not tried, because the proof fails without any mistake. */
static void print_untried(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *entry;
  size_t i;
  json_array_foreach(json_object_get(document, "untried"), i, entry) {
    int own = !strcmp(ad_text_of(entry, "dtype"), "recipe");
    fprintf(file,
            "  %sBAD%s  with nothing planted the first two steps do not hold in %s: %lld mistakes were not tried\n",
            paint->bad, paint->off, own ? "the recipe's own dtypes" : "f64", ad_integer_of(entry, "mistakes"));
  }
}

static void print_sabotages(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *sabotages = json_object_get(document, "sabotage"), *sabotage;
  size_t i, known = 0, survived = 0;
  if (!sabotages) return;
  print_coverage(file, document, sabotages, paint);
  print_reasons(file, sabotages, paint);
  print_survivors(file, sabotages, paint);
  fprintf(file, "\n  %sknown mistakes that are no transition, and what caught them%s\n", paint->dim, paint->off);
  json_array_foreach(sabotages, i, sabotage) {
    if (is_derived(sabotage)) continue;
    print_sabotage(file, sabotage, paint);
    known++;
    survived += has_survived(sabotage);
  }
  fprintf(file, "  %zu planted, %zu survived\n", known, survived);
  print_unplanted(file, json_object_get(document, "not_planted"), paint);
  print_untried(file, document, paint);
}

static void print_number(FILE *file, const json_t *document, const char *name, const ad_paint *paint) {
  const json_t *number = json_object_get(document, name);
  if (!json_object_get(number, "bound") || ad_number_of(number, "rel_err") <= ad_number_of(number, "bound")) return;
  char causes[CAUSES];
  fprintf(file, "  %sBAD%s  the %s is off by %.2g, bound %.2g", paint->bad, paint->off, name,
          ad_number_of(number, "rel_err"), ad_number_of(number, "bound"));
  if (ad_cause_is_told(number)) fprintf(file, ": %s", ad_cause_print(number, causes, sizeof causes));
  print_no_axis(file, number);
  fprintf(file, "\n");
}

static void print_choices(FILE *file, const json_t *choices, const ad_paint *paint) {
  if (!choices || ad_number_of(choices, "below") <= ad_number_of(choices, "bound")) return;
  fprintf(file, "  %sBAD%s  a choice is worse by %.2g than one that was left, bound %.2g\n", paint->bad, paint->off,
          ad_number_of(choices, "below"), ad_number_of(choices, "bound"));
}

/* Prints judged numbers that belong to no parameter, if they fail. `numbers` has a proof's loss and norm, `summary` its
 * other numbers. */
static void print_failures(FILE *file, const json_t *numbers, const json_t *summary, const ad_paint *paint) {
  print_number(file, numbers, "loss", paint);
  print_number(file, numbers, "norm", paint);
  print_process(file, summary);
  print_choices(file, json_object_get(summary, "choices"), paint);
  if (json_is_false(json_object_get(summary, "initial_equal")))
    fprintf(file, "  %sBAD%s  the initial values are not those that one process draws\n", paint->bad, paint->off);
  if (json_is_false(json_object_get(summary, "updates_equal")))
    fprintf(file, "  %sBAD%s  fed the same gradient, the optimizer of one process gives other bits\n", paint->bad,
            paint->off);
  const json_t *collectives = json_object_get(summary, "collectives");
  if (json_is_false(json_object_get(collectives, "as_planned")))
    fprintf(file, "  %sBAD%s  the step's collectives are not those of its plan: %s\n", paint->bad, paint->off,
            ad_text_of(collectives, "difference"));
  const char *reports = ad_text_of(summary, "reports_differ");
  if (*reports) fprintf(file, "  %sBAD%s  %s\n", paint->bad, paint->off, reports);
  const json_t *states = json_object_get(summary, "states"), *error = json_object_get(states, "rel_err");
  if (states && !(json_is_number(error) && json_number_value(error) <= ad_number_of(states, "bound")))
    fprintf(file, "  %sBAD%s  after a step the program's states or measured numbers are off by %.2g, bound %.2g\n",
            paint->bad, paint->off, json_number_value(error), ad_number_of(states, "bound"));
}

/* Digits to print of a share: near 1 two do not say on which side of it the share is. */
static int digits_of(double share) { return fabs(share - 1) < 0.1 ? 4 : 2; }

/* Prints the second proof, in the recipe's own dtypes: one sentence, and its failures if there are any. */
static void print_own(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *own = json_object_get(document, "own_dtypes");
  if (!own) return;
  if (measures_nothing(document)) {
    fprintf(file, "\n  in the recipe's own dtypes nothing is proven either\n");
    return;
  }
  int pass = is_true(own, "pass");
  double share = ad_number_of(own, "worst_share_of_bound");
  fprintf(file,
          "\n  in the recipe's own dtypes %s%s%s: `%s` comes nearest to what rounding allows, %.*g of it\n"
          "    error %.2g, that of one process %.2g; smallest cosine ",
          pass ? paint->good : paint->bad, pass ? "it holds" : "it does NOT hold", paint->off, ad_text_of(own, "param"),
          digits_of(share), share, ad_number_of(own, "err"), ad_number_of(own, "one_process_err"));
  print_angle(file, ad_number_of(own, "worst_cosine"));
  fprintf(file, "; chance of a false alarm below %.0g\n", ad_number_of(own, "false_alarm"));
  print_overflow(file, document, own);
  print_failures(file, own, own, paint);
  if (json_is_false(json_object_get(own, "replicas_equal")))
    fprintf(file, "  %sBAD%s  copies are not the same bits on all ranks\n", paint->bad, paint->off);
}

static void print_note(FILE *file, const json_t *document) {
  if (*ad_text_of(document, "reason") || ad_integer_of(document, "world") != 1) return;
  fprintf(file, "\n  one rank sums nothing with others: this says nothing of sums\n");
}

static const json_t *first_survivor(const json_t *sabotages) {
  const json_t *sabotage;
  size_t i;
  json_array_foreach(sabotages, i, sabotage) if (has_survived(sabotage)) return sabotage;
  return NULL;
}

/* Prints the verdict of a proof whose numbers hold although planted mistakes survived. */
static void print_survival(FILE *file, const json_t *document, long long params, long long survivors) {
  const json_t *first = first_survivor(json_object_get(document, "sabotage"));
  fprintf(file, ": %lld parameter%s hold%s, but %lld planted mistake%s survived: `%s`", params, ad_plural(params),
          params == 1 ? "s" : "", survivors, ad_plural(survivors), ad_text_of(first, "name"));
  if (survivors > 1) fprintf(file, " and %lld more", survivors - 1);
}

/* Names the parameters that no gradient reached: nothing is known of them. */
static void print_unreached(FILE *file, const json_t *document) {
  enum { NAMED = 3 };
  const json_t *param;
  size_t i, found = 0;
  json_array_foreach(json_object_get(document, "params"), i, param) {
    if (is_reached(param) || ++found > NAMED) continue;
    fprintf(file, "%s`%s`", found == 1 ? "; no gradient reached " : ", ", ad_text_of(param, "name"));
  }
  if (found > NAMED) fprintf(file, " and %zu more", found - NAMED);
}

/* Prints the last line: the verdict, proven or not. */
static void print_verdict(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *summary = json_object_get(document, "summary"), *own = json_object_get(document, "own_dtypes");
  const char *reason = ad_text_of(document, "reason");
  int holds = is_true(document, "holds"), numbers = is_true(summary, "pass") && (!own || is_true(own, "pass"));
  long long params = ad_integer_of(summary, json_object_get(summary, "reached") ? "reached" : "params");
  long long survivors = ad_integer_of(document, "survivors");
  fprintf(file, "\n%s%s%s", holds ? paint->good : paint->bad,
          *reason ? "NOTHING PROVEN"
          : holds ? "proven"
                  : "NOT PROVEN",
          paint->off);
  if (*reason)
    fprintf(file, ": %s", reason);
  else if (survivors && numbers)
    print_survival(file, document, params, survivors);
  else if (numbers && json_array_size(json_object_get(document, "untried")))
    fprintf(file, ": %lld parameter%s hold%s, but planted mistakes could not be tried", params, ad_plural(params),
            params == 1 ? "s" : "");
  else if (params && numbers && json_is_false(json_object_get(json_object_get(document, "directional"), "pass")))
    fprintf(file, ": %lld parameter%s match%s one process, but the gradient is not the slope of the loss", params,
            ad_plural(params), params == 1 ? "es" : "");
  else if (params)
    fprintf(file, ": %lld parameter%s, worst error %.2g", params, ad_plural(params),
            ad_number_of(summary, "worst_rel_err"));
  if (!*reason) print_unreached(file, document);
  fprintf(file, " (%.1f s)\n", ad_number_of(document, "seconds"));
}

static void print_check(FILE *file, const json_t *document, const void *context) {
  const ad_paint *paint = context;
  print_head(file, document, paint);
  print_params(file, document, paint);
  print_failures(file, document, json_object_get(document, "summary"), paint);
  print_directional(file, document, paint);
  print_not_smooth(file, document);
  print_margin(file, document);
  print_own(file, document, paint);
  print_sabotages(file, document, paint);
  print_note(file, document);
  print_verdict(file, document, paint);
}

ad_status ad_check_table(const char *json, ad_text_style style, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "check", print_check, ad_paint_of(style), out);
}
