/* Prints the document of a check as tables: the verdict, what does not match, what does, and the verdict again. */
#include <math.h>
#include <string.h>

#include "addend/check.h"
#include "addend/verdict.h"
#include "base/error.h"
#include "base/text.h"
#include "check/table.h"
#include "say/cause.h"
#include "base/verdict.h"

static int is_true(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

/* Returns the mesh as text; if modules have separate meshes, all of them: "encoder: dp=2, model: dp=4". */
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
  fprintf(file, "%s%s%s  %lld rank%s, mesh %s, %s, %lld step%s, %.1f s\n", paint->bold, ad_text_of(document, "recipe"),
          paint->off, ranks, ad_plural(ranks), mesh_of(document, mesh, sizeof mesh), ad_text_of(document, "dtype"),
          steps, ad_plural(steps), ad_number_of(document, "seconds"));
  fprintf(file, "loss %.12g", ad_number_of(loss, "dist"));
  if (json_is_number(json_object_get(loss, "ref"))) fprintf(file, ", reference %.12g", ad_number_of(loss, "ref"));
  fprintf(file, "; gradient norm %.12g", ad_number_of(norm, "dist"));
  if (json_is_number(json_object_get(norm, "ref"))) fprintf(file, ", reference %.12g", ad_number_of(norm, "ref"));
  fprintf(file, "\n");
}

/* Prints the smallest margin with which a choice of experts was made. */
static void print_margin(FILE *file, const json_t *document) {
  const json_t *summary = json_object_get(document, "summary");
  if (json_object_get(summary, "smallest_margin"))
    fprintf(file, "\n  smallest margin of a choice %.2g\n", ad_number_of(summary, "smallest_margin"));
}

/* Returns 1 if the parameter is frozen: it has no gradient, and its value must stay as it is. */
static int is_frozen(const json_t *param) { return json_object_get(param, "frozen") != NULL; }

static int param_holds(const json_t *param) {
  if (is_frozen(param)) return is_true(param, "replicas_equal") && !strcmp(ad_text_of(param, "frozen"), "unchanged");
  return is_true(param, "replicas_equal") && ad_number_of(param, "max_rel_err") <= ad_number_of(param, "bound") &&
         !ad_cause_is_reported(param);
}

/* Returns 1 if no token counted, or no gradient reached a parameter. Then every gradient is zero, and numbers that
 * agree show nothing. */
static int measures_nothing(const json_t *document) {
  const json_t *summary = json_object_get(document, "summary");
  return ad_number_of(summary, "counted") == 0 || ad_number_of(summary, "reached") == 0;
}

/* Returns 1 if in some step the gradient of the parameter was not zero. */
static int is_reached(const json_t *param) { return !json_is_false(json_object_get(param, "reached")); }

/* A row's verdict on a parameter: it matches; it does not match; or nothing is known, because every gradient is
 * zero. */
typedef enum fit { FITS, FITS_NOT, UNKNOWN } fit;

static fit fit_of(const json_t *document, const json_t *param) {
  if (!param_holds(param)) return FITS_NOT;
  if (is_frozen(param)) return FITS;
  return !measures_nothing(document) && is_reached(param) ? FITS : UNKNOWN;
}

/* Returns the first parameter that has a gradient; NULL if all are frozen. */
static const json_t *first_trained(const json_t *params) {
  size_t i = 0;
  while (i < json_array_size(params) && is_frozen(json_array_get(params, i))) i++;
  return json_array_get(params, i);
}

/* Prints the verdict word at the start of a row. */
static void print_word(FILE *file, fit word, const ad_paint *paint) {
  const char *colour = word == FITS_NOT ? paint->bad : word == FITS ? paint->good : paint->dim;
  fprintf(file, "  %s%-4s%s ", colour, word == FITS_NOT ? "BAD" : word == FITS ? "ok" : "-", paint->off);
}

/* Returns 1 if the parameter was checked in dtypes that round; the table then has the error of one process in these
 * dtypes, too. */
static int is_rounded(const json_t *param) { return json_object_get(param, "one_process_err") != NULL; }

static void print_numbers(FILE *file, const json_t *param) {
  const char *over = ad_text_of(param, "reduced_over");
  if (is_frozen(param)) {
    char words[32];
    snprintf(words, sizeof words, "frozen: %s", ad_text_of(param, "frozen"));
    fprintf(file, "%-24s %-26s %-22s %-8s", ad_text_of(param, "name"), "-", words,
            is_true(param, "replicas_equal") ? "equal" : "DIFFER");
    return;
  }
  fprintf(file, "%-24s %-26s %-11.9g %-10.2g %-8s", ad_text_of(param, "name"), *over ? over : "-",
          ad_number_of(param, "ratio"), ad_number_of(param, "max_rel_err"),
          is_true(param, "replicas_equal") ? "equal" : "DIFFER");
  if (is_rounded(param)) fprintf(file, " %-11.2g", ad_number_of(param, "one_process_err"));
}

static void print_param(FILE *file, const json_t *param, fit word, const ad_paint *paint) {
  print_word(file, word, paint);
  print_numbers(file, param);
  char causes[AD_TABLE_CAUSES];
  if (ad_cause_is_reported(param))
    fprintf(file, " %s%s%s", paint->bad, ad_cause_print(param, causes, sizeof causes), paint->off);
  else if (!is_reached(param) && !is_frozen(param))
    fprintf(file, " no gradient reached it");
  ad_table_no_axis(file, param);
  fprintf(file, "\n");
}

/* Prints a line if all gradients together, as one vector, fail. A check in the recipe's own dtypes judges them so. */
static void print_process(FILE *file, const json_t *summary) {
  double share = ad_number_of(summary, "process_share");
  if (json_object_get(summary, "process_share") && !(share <= 1))
    fprintf(file, "    all gradients together are %.4g times as far from one process's as rounding allows\n", share);
}

/* Returns the cosine by which parameters are ordered. A gradient of zeros has no cosine: it counts as 1 if the
 * reference is zero, too, and otherwise as -2, before all others. */
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

/* Prints the parameter whose gradient has the smallest cosine to its reference. */
static void print_cosine(FILE *file, const json_t *params) {
  const json_t *param, *worst = first_trained(params);
  size_t i;
  json_array_foreach(params, i, param) if (!is_frozen(param) && cosine_of(param) < cosine_of(worst)) worst = param;
  fprintf(file, "\n  smallest cosine to the reference ");
  print_angle(file, ad_number_of(worst, "cosine"));
  fprintf(file, ", of `%s`\n", ad_text_of(worst, "name"));
}

/* Prints how many steps were skipped because a gradient overflowed; these steps were not checked. */
static void print_overflow(FILE *file, const json_t *document, const json_t *of) {
  const json_t *overflow = json_object_get(of, "overflow");
  if (!overflow) return;
  long long skipped = ad_integer_of(overflow, "steps");
  fprintf(
      file,
      "    %lld of %lld steps overflowed at scale 2^%lld in `%s` and %s skipped, as in training; checked at 2^%lld\n",
      skipped, ad_integer_of(document, "steps"), ad_integer_of(overflow, "scale"), ad_text_of(overflow, "param"),
      skipped == 1 ? "was" : "were", ad_integer_of(overflow, "checked_at"));
}

/* Counts the parameters with this verdict; of frozen ones only those that do not match. Sets *worst to the largest error
 * among them, and *first to the first of them. */
static size_t count_fits(const json_t *document, fit word, double *worst, const json_t **first) {
  const json_t *param;
  size_t i, count = 0;
  *worst = 0;
  *first = NULL;
  json_array_foreach(json_object_get(document, "params"), i, param) {
    if (fit_of(document, param) != word || (is_frozen(param) && word != FITS_NOT)) continue;
    if (!count++) *first = param;
    *worst = fmax(*worst, ad_number_of(param, "max_rel_err"));
  }
  return count;
}

static size_t count_unchanged(const json_t *document) {
  const json_t *param;
  size_t i, count = 0;
  json_array_foreach(json_object_get(document, "params"), i, param) count += is_frozen(param) && param_holds(param);
  return count;
}

/* Prints one line for all parameters that match, one for frozen ones, and one for all that no gradient reached. */
static void print_together(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *first;
  double worst;
  size_t right = count_fits(document, FITS, &worst, &first);
  if (right) {
    print_word(file, FITS, paint);
    fprintf(file, "%zu parameter%s (worst %.2g)\n", right, ad_plural((long long)right), worst);
  }
  size_t frozen = count_unchanged(document);
  if (frozen) {
    print_word(file, FITS, paint);
    fprintf(file, "%zu frozen parameter%s, unchanged\n", frozen, ad_plural((long long)frozen));
  }
  size_t zero = count_fits(document, UNKNOWN, &worst, &first);
  if (!zero) return;
  print_word(file, UNKNOWN, paint);
  fprintf(file, "%zu parameter%s that no gradient reached: `%s`", zero, ad_plural((long long)zero),
          ad_text_of(first, "name"));
  if (zero > 1) fprintf(file, " and %zu more", zero - 1);
  fprintf(file, "\n");
}

static void print_rows(FILE *file, const json_t *document, int all, const ad_paint *paint) {
  const json_t *params = json_object_get(document, "params"), *param;
  size_t i;
  int rounded = is_rounded(first_trained(params));
  fprintf(file, "  %s%-4s %-24s %-26s %-11s %-10s %-8s%s%s\n", paint->dim, "", "parameter", "summed over", "ratio",
          rounded ? "error" : "worst err", "replicas", rounded ? " one process" : "", paint->off);
  json_array_foreach(params, i, param) {
    fit word = fit_of(document, param);
    if (all || word == FITS_NOT) print_param(file, param, word, paint);
  }
}

/* Prints a row for each parameter that does not match; with `all`, a row for each parameter. */
static void print_params(FILE *file, const json_t *document, int all, const ad_paint *paint) {
  const json_t *params = json_object_get(document, "params"), *first;
  double worst;
  if (!json_array_size(params)) return;
  fprintf(file, "\n");
  if (all || count_fits(document, FITS_NOT, &worst, &first)) print_rows(file, document, all, paint);
  if (!all) print_together(file, document, paint);
  if (is_rounded(first_trained(params))) print_cosine(file, params);
  print_overflow(file, document, json_object_get(document, "summary"));
}

/* Prints a line for each group: what updates its parameters, and whether that gave one process's bits. */
static void print_groups(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *group;
  size_t i;
  json_array_foreach(json_object_get(document, "groups"), i, group) {
    int equal = is_true(group, "updates_equal"), frozen = is_true(group, "frozen");
    long long params = ad_integer_of(group, "params");
    if (!i) fprintf(file, "\n");
    print_word(file, equal ? FITS : FITS_NOT, paint);
    if (json_is_string(json_object_get(group, "match")))
      fprintf(file, "group `%s` (", ad_text_of(group, "match"));
    else
      fprintf(file, "all others (");
    if (frozen)
      fprintf(file, "frozen");
    else
      fprintf(file, "%s%s, lr %g", ad_text_of(group, "kind"), is_true(group, "blockwise") ? " of each block" : "",
              ad_number_of(group, "lr"));
    fprintf(file, "): %lld parameter%s, %s\n", params, ad_plural(params),
            frozen  ? (equal ? "unchanged" : "changed")
            : equal ? "updates equal"
                    : "updates differ");
  }
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

/* Prints why the slope of a custom program's loss was not compared with the gradient. */
static void print_not_smooth(FILE *file, const json_t *document) {
  const char *why = ad_text_of(document, "not_smooth");
  if (*why)
    fprintf(file, "\n  the slope of the loss was not compared with the gradient, as the program says: %s\n", why);
}

static void print_number(FILE *file, const json_t *document, const char *name, const ad_paint *paint) {
  const json_t *number = json_object_get(document, name);
  if (!json_object_get(number, "bound") || ad_number_of(number, "rel_err") <= ad_number_of(number, "bound")) return;
  char causes[AD_TABLE_CAUSES];
  fprintf(file, "  %sBAD%s  the %s is off by %.2g, bound %.2g", paint->bad, paint->off, name,
          ad_number_of(number, "rel_err"), ad_number_of(number, "bound"));
  if (ad_cause_is_reported(number)) fprintf(file, ": %s", ad_cause_print(number, causes, sizeof causes));
  ad_table_no_axis(file, number);
  fprintf(file, "\n");
}

static void print_choices(FILE *file, const json_t *choices, const ad_paint *paint) {
  if (!choices || ad_number_of(choices, "below") <= ad_number_of(choices, "bound")) return;
  fprintf(file, "  %sBAD%s  a choice is worse by %.2g than one that was left, bound %.2g\n", paint->bad, paint->off,
          ad_number_of(choices, "below"), ad_number_of(choices, "bound"));
}

/* Prints judged numbers that belong to no parameter, if they fail. `numbers` has a check's loss and norm, `summary` its
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

/* Returns the number of digits with which a share is printed: near 1, two digits do not show on which side of 1 it
 * is. */
static int digits_of(double share) { return fabs(share - 1) < 0.1 ? 4 : 2; }

/* Prints the result of the second check, which is in the recipe's own dtypes: one sentence, and its failures if there
 * are any. */
static void print_own(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *own = json_object_get(document, "own_dtypes");
  if (!own) return;
  if (measures_nothing(document)) {
    fprintf(file, "\n  in the recipe's own dtypes nothing is checked either\n");
    return;
  }
  int pass = is_true(own, "pass");
  double share = ad_number_of(own, "worst_share_of_bound");
  fprintf(file,
          "\n  in the recipe's own dtypes %s%s%s: `%s` comes nearest to what rounding allows, %.*g of it\n"
          "    error %.2g, that of one process %.2g; smallest cosine ",
          pass ? paint->good : paint->bad, pass ? "it matches" : "it does NOT match", paint->off,
          ad_text_of(own, "param"), digits_of(share), share, ad_number_of(own, "err"),
          ad_number_of(own, "one_process_err"));
  print_angle(file, ad_number_of(own, "worst_cosine"));
  fprintf(file, "; chance of a false alarm below %.0g\n", ad_number_of(own, "false_alarm"));
  print_overflow(file, document, own);
  print_failures(file, own, own, paint);
  if (json_is_false(json_object_get(own, "replicas_equal")))
    fprintf(file, "  %sBAD%s  replicas are not the same bits on all ranks\n", paint->bad, paint->off);
}

/* Prints the result of the check for bits, beside that of the check whose bounds allow rounding. */
static void print_bits(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *bits = json_object_get(document, "bits");
  if (!bits || json_is_null(bits)) return;
  int equal = is_true(bits, "equal");
  long long leaves = ad_integer_of(bits, "leaves"), ranks = ad_integer_of(bits, "ranks");
  fprintf(file, "\n  bit for bit %s%s%s: %lld %s on %lld rank%s, without data parallelism",
          equal ? paint->good : paint->bad, equal ? "it matches" : "it does NOT match", paint->off, leaves,
          leaves == 1 ? "leaf" : "leaves", ranks, ad_plural(ranks));
  if (equal)
    fprintf(file, ", give the same gradients, sums, norms, losses and updated values (%lld compared)\n",
            ad_integer_of(bits, "compared"));
  else
    fprintf(file, "\n  %sBAD%s  %s\n", paint->bad, paint->off, ad_text_of(bits, "difference"));
}

static void print_note(FILE *file, const json_t *document) {
  if (*ad_text_of(document, "reason") || ad_integer_of(document, "world") != 1) return;
  fprintf(file, "\n  one rank sums nothing with others: this says nothing of sums\n");
}

/* Prints the names of the parameters that no gradient reached: nothing is known about them. */
static void print_unreached(FILE *file, const json_t *document) {
  enum { NAMED = 3 };
  const json_t *param;
  size_t i, found = 0;
  json_array_foreach(json_object_get(document, "params"), i, param) {
    if (is_reached(param) || is_frozen(param) || ++found > NAMED) continue;
    fprintf(file, "%s`%s`", found == 1 ? "; no gradient reached " : ", ", ad_text_of(param, "name"));
  }
  if (found > NAMED) fprintf(file, " and %zu more", found - NAMED);
}

static int numbers_hold(const json_t *document) {
  const json_t *own = json_object_get(document, "own_dtypes");
  return is_true(json_object_get(document, "summary"), "pass") && (!own || is_true(own, "pass"));
}

static int bits_differ(const json_t *document) {
  return json_is_false(json_object_get(json_object_get(document, "bits"), "equal"));
}

static int slope_fails(const json_t *document) {
  return json_is_false(json_object_get(json_object_get(document, "directional"), "pass"));
}

static ad_verdict_word verdict_of(const json_t *document) {
  if (is_true(document, "holds")) return AD_MATCHES;
  if (*ad_text_of(document, "reason")) /* nothing was measured, or no mutant changed a number */
    return is_true(json_object_get(document, "summary"), "pass") ? AD_CANNOT_TELL : AD_NOT_CHECKED;
  return numbers_hold(document) && !slope_fails(document) && !bits_differ(document) ? AD_CANNOT_TELL
                                                                                    : AD_DOES_NOT_MATCH;
}

/* Prints "20 parameters match", for verdicts other than a match. */
static void print_matching(FILE *file, long long params) {
  fprintf(file, "%lld parameter%s match%s", params, ad_plural(params), params == 1 ? "es" : "");
}

static void print_doubt(FILE *file, const json_t *document, long long params) {
  const char *reason = ad_text_of(document, "reason");
  long long survivors = ad_integer_of(document, "survivors");
  fprintf(file, ": ");
  if (*reason) {
    fprintf(file, "%s", reason);
    return;
  }
  print_matching(file, params);
  if (!survivors) {
    fprintf(file, " one process, but mutants could not be tried");
    return;
  }
  fprintf(file, " one process, but %lld mutant%s survived: `%s`", survivors, ad_plural(survivors),
          ad_table_first_survivor(json_object_get(document, "mutants")));
  if (survivors > 1) fprintf(file, " and %lld more", survivors - 1);
}

static void print_slope(FILE *file, const json_t *document) {
  fprintf(file, " the slope of the loss (relative error %.2g)",
          ad_number_of(json_object_get(document, "directional"), "rel_err"));
}

static void print_worst(FILE *file, const json_t *document) {
  fprintf(file, " one process (worst %.2g): ", ad_number_of(json_object_get(document, "summary"), "worst_rel_err"));
}

/* Prints what does not match: parameters, or numbers that belong to no parameter. `params` is how many parameters were
 * compared; 0 in a directional check. */
static void print_mismatch(FILE *file, const json_t *document, long long params) {
  const json_t *first;
  double worst;
  size_t wrong = count_fits(document, FITS_NOT, &worst, &first);
  if (wrong) {
    print_worst(file, document);
    fprintf(file, "%zu of %zu parameters", wrong, json_array_size(json_object_get(document, "params")));
  } else if (!params) {
    print_slope(file, document);
  } else if (!is_true(json_object_get(document, "summary"), "pass")) {
    fprintf(file, " one process: ");
    print_matching(file, params);
    fprintf(file, ", but not every other number");
  } else if (!numbers_hold(document)) {
    fprintf(file, " one process in the recipe's own dtypes: ");
    print_matching(file, params);
    fprintf(file, " in %s", ad_text_of(document, "dtype"));
  } else if (slope_fails(document)) {
    print_slope(file, document);
    fprintf(file, ": ");
    print_matching(file, params);
    fprintf(file, " one process");
  } else {
    fprintf(file, " bit for bit: %s; ", ad_text_of(json_object_get(document, "bits"), "difference"));
    print_matching(file, params);
    fprintf(file, " one process within rounding");
  }
}

static void print_frozen(FILE *file, const json_t *document) {
  size_t frozen = count_unchanged(document);
  if (frozen) fprintf(file, ", and %zu frozen one%s unchanged", frozen, ad_plural((long long)frozen));
}

static void print_blockwise(FILE *file, const json_t *document) {
  const json_t *group;
  size_t i;
  int blockwise = 0;
  json_array_foreach(json_object_get(document, "groups"), i, group) blockwise |= is_true(group, "blockwise");
  if (blockwise) fprintf(file, "; matrices are updated block by block, which depends on how they are sharded");
}

static void print_match(FILE *file, const json_t *document, long long params) {
  if (!params) {
    print_slope(file, document);
    return;
  }
  print_worst(file, document);
  fprintf(file, "%lld parameter%s", params, ad_plural(params));
  print_frozen(file, document);
  print_blockwise(file, document);
  if (json_is_object(json_object_get(document, "bits"))) fprintf(file, ", and bit for bit");
  if (json_object_get(document, "mutants")) fprintf(file, "; no mutant survived");
}

/* Prints the verdict, which is both the first and the last line. */
static void print_verdict(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *summary = json_object_get(document, "summary");
  long long params = ad_integer_of(summary, json_object_get(summary, "reached") ? "reached" : "params");
  ad_verdict_word verdict = verdict_of(document);
  const char *colour = verdict == AD_MATCHES ? paint->good : verdict == AD_CANNOT_TELL ? paint->open : paint->bad;
  fprintf(file, "%s%s%s", colour, ad_verdict_words(verdict), paint->off);
  if (verdict == AD_MATCHES)
    print_match(file, document, params);
  else if (verdict == AD_DOES_NOT_MATCH)
    print_mismatch(file, document, params);
  else
    print_doubt(file, document, params);
  if (!*ad_text_of(document, "reason")) print_unreached(file, document);
  fprintf(file, "\n");
}

/* How a document is printed. */
typedef struct printing {
  int all; /* 1: a row for each parameter and each mutant */
  const ad_paint *paint;
} printing;

static void print_check(FILE *file, const json_t *document, const void *context) {
  const printing *how = context;
  const ad_paint *paint = how->paint;
  print_verdict(file, document, paint);
  fprintf(file, "\n");
  print_head(file, document, paint);
  print_params(file, document, how->all, paint);
  print_groups(file, document, paint);
  print_failures(file, document, json_object_get(document, "summary"), paint);
  print_directional(file, document, paint);
  print_not_smooth(file, document);
  print_margin(file, document);
  print_own(file, document, paint);
  print_bits(file, document, paint);
  ad_table_mutants(file, document, how->all, paint);
  print_note(file, document);
  fprintf(file, "\n");
  print_verdict(file, document, paint);
}

ad_status ad_check_table(const char *json, ad_text_style style, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "check", print_check, &(printing){0, ad_paint_of(style)}, out);
}

ad_status ad_check_list(const char *json, ad_text_style style, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "check", print_check, &(printing){1, ad_paint_of(style)}, out);
}
