/* Prints the results of the mutants of a check. A mutant is a copy of the program with one mistake. */
#include <string.h>

#include "base/text.h"
#include "check/no_axis.h"
#include "check/mutation.h"
#include "check/table.h"
#include "say/cause.h"

/* Prints why no axis is named. Prints nothing for a mutant that no number shows, because its row has this already. */
void ad_table_no_axis(FILE *file, const json_t *judged) {
  const json_t *of = json_object_get(judged, "no_axis") ? judged : json_object_get(judged, "cause");
  const char *why = ad_text_of(of, "no_axis"), *clause = ad_no_axis_clause(why);
  if (*clause && strcmp(why, ad_no_axis_name(AD_NO_AXIS_NO_NUMBER))) fprintf(file, " (no axis: %s)", clause);
}

static int is_derived(const json_t *mutant) { return json_is_object(json_object_get(mutant, "derived")); }
static int has_survived(const json_t *mutant) { return !strcmp(ad_text_of(mutant, "killed_by"), "none"); }

const char *ad_table_first_survivor(const json_t *mutants) {
  const json_t *mutant;
  size_t i;
  json_array_foreach(mutants, i, mutant) if (has_survived(mutant)) return ad_text_of(mutant, "name");
  return "";
}

static void print_mutant(FILE *file, const json_t *mutant, const ad_paint *paint) {
  const char *killed_by = ad_text_of(mutant, "killed_by"), *message = ad_text_of(mutant, "message");
  int survived = strcmp(killed_by, "none") == 0;
  fprintf(file, "  %s%-9s%s %-42s", survived ? paint->bad : paint->good, survived ? "SURVIVED" : killed_by, paint->off,
          ad_text_of(mutant, "name"));
  char causes[AD_TABLE_CAUSES];
  int is_reported = ad_cause_is_reported(mutant);
  if (json_is_number(json_object_get(mutant, "ratio"))) fprintf(file, " ratio %-10.6g", ad_number_of(mutant, "ratio"));
  if (is_reported) fprintf(file, " %s: %s", ad_text_of(mutant, "param"), ad_cause_print(mutant, causes, sizeof causes));
  if (*message) fprintf(file, " %.*s", (int)strcspn(message, "\n"), message);
  if (strcmp(killed_by, "number") == 0 && !is_reported)
    fprintf(file, " the loss, the norm or an update is off, or ranks differ in the loss or the norm");
  ad_table_no_axis(file, mutant);
  fprintf(file, "\n");
}

/* Returns how many mutants of one operator were killed in one way; in any way if killed_by is NULL. */
static long long count_of(const json_t *mutants, const char *operator_, const char *killed_by) {
  const json_t *mutant;
  long long count = 0;
  size_t i;
  json_array_foreach(mutants, i, mutant) {
    const json_t *derived = json_object_get(mutant, "derived");
    int is_of = json_is_object(derived) && !strcmp(ad_text_of(derived, "operator"), operator_);
    count += is_of && (!killed_by || !strcmp(ad_text_of(mutant, "killed_by"), killed_by));
  }
  return count;
}

static void print_operator(FILE *file, const json_t *mutants, const char *operator_) {
  static const char *const killed_by[] = {"type", "number", "protocol", "no_effect", "none"};
  if (!count_of(mutants, operator_, NULL)) return;
  fprintf(file, "  %-24s", operator_);
  for (size_t i = 0; i < sizeof killed_by / sizeof *killed_by; i++)
    fprintf(file, "%12lld", count_of(mutants, operator_, killed_by[i]));
  fprintf(file, "\n");
}

static void print_operators(FILE *file, const json_t *mutants, const ad_paint *paint) {
  fprintf(file, "  %s%-24s%12s%12s%12s%12s%12s%s\n", paint->dim, "killed", "by type", "by number", "by protocol",
          "no effect", "survived", paint->off);
  for (int op = 0; op < AD_OPERATOR_COUNT; op++) print_operator(file, mutants, ad_operator_name((ad_operator)op));
}

/* Prints why derived mutants were without effect: each reason once, with the number of its mutants. */
static void print_reasons(FILE *file, const json_t *mutants, const ad_paint *paint) {
  enum { REASONS = 16 };
  const char *reasons[REASONS];
  long long counts[REASONS] = {0};
  size_t i, known = 0;
  const json_t *mutant;
  json_array_foreach(mutants, i, mutant) {
    size_t k = 0;
    if (!is_derived(mutant) || strcmp(ad_text_of(mutant, "killed_by"), "no_effect") != 0) continue;
    while (k < known && strcmp(reasons[k], ad_text_of(mutant, "message")) != 0) k++;
    if (k == REASONS) continue;
    if (k == known) reasons[known++] = ad_text_of(mutant, "message");
    counts[k]++;
  }
  for (size_t k = 0; k < known; k++)
    fprintf(file, "  %swithout effect, %lld:%s %s\n", paint->dim, counts[k], paint->off, reasons[k]);
}

/* Prints how many of the derived mutants (derived 1), or of the known bugs (0), were killed in which way or
 * survived. */
static void print_ends(FILE *file, const json_t *mutants, int derived) {
  static const struct {
    const char *killed_by, *words;
    int always;
  } ends[] = {{"type", "killed by type", 0}, {"number", "killed by number", 0}, {"protocol", "killed by protocol", 0},
              {"bits", "killed by bits", 0}, {"plan", "killed by plan", 0},     {"no_effect", "without effect", 0},
              {"none", "survived", 1}};
  int begun = 0;
  for (size_t k = 0; k < sizeof ends / sizeof *ends; k++) {
    const json_t *mutant;
    long long count = 0;
    size_t i;
    json_array_foreach(mutants, i, mutant) count +=
        is_derived(mutant) == derived && !strcmp(ad_text_of(mutant, "killed_by"), ends[k].killed_by);
    if (!count && !ends[k].always) continue;
    fprintf(file, "%s%lld %s", begun ? ", " : "", count, ends[k].words);
    begun = 1;
  }
}

static void print_derived(FILE *file, const json_t *document, const json_t *mutants) {
  const json_t *coverage = json_object_get(document, "coverage");
  long long count = ad_integer_of(coverage, "mutants"), of = ad_integer_of(coverage, "drawn_from");
  if (!count) return;
  fprintf(file, "  %lld mutant%s of the program's own transitions, at %lld places: ", count, ad_plural(count),
          ad_integer_of(coverage, "places"));
  print_ends(file, mutants, 1);
  if (of > count) fprintf(file, "; %lld not tried (drawn by seed %lld)", of - count, ad_integer_of(coverage, "seed"));
  fprintf(file, "\n");
}

static void print_known(FILE *file, const json_t *document, const json_t *mutants) {
  const json_t *mutant;
  long long count = 0, left = (long long)json_array_size(json_object_get(document, "not_applicable"));
  size_t i;
  json_array_foreach(mutants, i, mutant) count += !is_derived(mutant);
  fprintf(file, "  %lld known bug%s as mutant%s: ", count, ad_plural(count), ad_plural(count));
  print_ends(file, mutants, 0);
  if (left) fprintf(file, "; %lld not tried, which would change nothing here", left);
  fprintf(file, "\n");
}

static void print_not_tried(FILE *file, const json_t *list, const ad_paint *paint) {
  const json_t *left;
  size_t i;
  if (!json_array_size(list)) return;
  fprintf(file, "\n  %snot tried, for they would change nothing here%s\n", paint->dim, paint->off);
  json_array_foreach(list, i, left)
      fprintf(file, "  %-9s %-42s %s\n", "-", ad_text_of(left, "name"), ad_text_of(left, "why"));
}

/* Prints how many mutants were not tried because the check fails even without a mutation. */
static void print_untried(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *entry;
  size_t i;
  json_array_foreach(json_object_get(document, "untried"), i, entry) {
    int own = !strcmp(ad_text_of(entry, "dtype"), "recipe");
    fprintf(file, "  %sBAD%s  without a mutation the first two steps do not match in %s: %lld mutants were not tried\n",
            paint->bad, paint->off, own ? "the recipe's own dtypes" : "f64", ad_integer_of(entry, "mutants"));
  }
}

/* Prints a row for each mutant that survived; with `all`, a row for each mutant. */
static void print_each(FILE *file, const json_t *mutants, int all, const ad_paint *paint) {
  const json_t *mutant;
  size_t i;
  if (all) fprintf(file, "\n  %s%-9s %s%s\n", paint->dim, "killed by", "mutant", paint->off);
  json_array_foreach(mutants, i, mutant) if (all || has_survived(mutant)) print_mutant(file, mutant, paint);
}

void ad_table_mutants(FILE *file, const json_t *document, int all, const ad_paint *paint) {
  const json_t *mutants = json_object_get(document, "mutants");
  if (!mutants) return;
  fprintf(file, "\n");
  print_derived(file, document, mutants);
  print_known(file, document, mutants);
  print_untried(file, document, paint);
  if (all) {
    fprintf(file, "\n");
    print_operators(file, mutants, paint);
    print_reasons(file, mutants, paint);
  }
  print_each(file, mutants, all, paint);
  if (all) print_not_tried(file, json_object_get(document, "not_applicable"), paint);
}
