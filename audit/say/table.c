/* Prints the document of a dump as a table. The first and the last line are the verdict. All right parameters share one
 * line, and so do wrong parameters with the same text. */
#include <jansson.h>
#include <string.h>

#include "addend/diff.h"
#include "addend/verdict.h"
#include "base/error.h"
#include "base/text.h"
#include "say/cause.h"
#include "say/report_rows.h"
#include "files/printed.h"
#include "base/verdict.h"

/* Returns 1 if `object`, the document of a parameter or of a whole dump, has the verdict `verdict`: "right", "wrong"
 * or "cannot_tell". */
static int is_judged(const json_t *object, const char *verdict) {
  return !strcmp(ad_text_of(object, "verdict"), verdict);
}

static void print_head(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *dumped = json_object_get(document, "dumped");
  long long ranks = ad_integer_of(document, "world"), microbatches = ad_integer_of(document, "microbatches");
  fprintf(file, "%s%lld rank%s%s, mesh %s, %lld microbatch%s", paint->bold, ranks, ad_plural(ranks), paint->off,
          ad_text_of(document, "mesh"), microbatches, microbatches == 1 ? "" : "es");
  if (json_is_integer(json_object_get(document, "step"))) fprintf(file, ", step %lld", ad_integer_of(document, "step"));
  fprintf(file, "; files: %lld addend%s, %lld sum%s%s\n\n", ad_integer_of(dumped, "addends"),
          ad_plural(ad_integer_of(dumped, "addends")), ad_integer_of(dumped, "sums"),
          ad_plural(ad_integer_of(dumped, "sums")),
          json_is_true(json_object_get(dumped, "reference")) ? ", a reference" : "");
}

/* Counts the parameters of each source of declarations that the job makes itself, and of types=. */
static json_t *count_sources(const json_t *rows) {
  json_t *sources = json_object();
  const json_t *row;
  size_t i;
  json_array_foreach(rows, i, row) {
    const char *by = ad_text_of(row, "by");
    if (!json_is_true(json_object_get(row, "stated")) && strcmp(by, "types=") != 0) continue;
    if (!json_object_get(sources, by)) json_object_set_new(sources, by, json_object());
    json_object_set_new(json_object_get(sources, by), ad_text_of(row, "name"), json_true());
  }
  return sources;
}

/* Counts the parameters of which a source declares something that types= overrides. */
static size_t count_overridden(const json_t *rows, const json_t *by_types) {
  json_t *names = json_object();
  const json_t *row;
  size_t i;
  json_array_foreach(rows, i, row) {
    const char *name = ad_text_of(row, "name");
    if (json_is_true(json_object_get(row, "stated")) && json_is_false(json_object_get(row, "counts")) &&
        json_object_get(by_types, name))
      json_object_set_new(names, name, json_true());
  }
  size_t count = json_object_size(names);
  json_decref(names);
  return count;
}

/* Prints how many parameters each source declares something of: "declared: 12 parameters by spmd_types, 3 by ...". */
static void print_declared(FILE *file, const json_t *document, const ad_paint *paint) {
  enum { NAMED = 4 };
  const json_t *rows = json_object_get(document, "declarations");
  json_t *sources = count_sources(rows), *by_types = json_object_get(sources, "types="), *names;
  size_t overridden = count_overridden(rows, by_types), count = 0;
  const char *by;
  json_object_foreach(sources, by, names) {
    long long params = (long long)json_object_size(names);
    if (names == by_types || ++count > NAMED) continue;
    if (count == 1)
      fprintf(file, "%sdeclared%s: %lld parameter%s by %s", paint->dim, paint->off, params, ad_plural(params), by);
    else
      fprintf(file, ", %lld by %s", params, by);
  }
  if (count > NAMED) fprintf(file, ", and more by %zu other sources", count - NAMED);
  if (count && overridden) fprintf(file, "; types= overrides %zu", overridden);
  if (count) fprintf(file, "\n\n");
  json_decref(sources);
}

static size_t count_judged(const json_t *params, const char *verdict) {
  const json_t *param;
  size_t i, count = 0;
  json_array_foreach(params, i, param) count += (size_t)is_judged(param, verdict);
  return count;
}

/* Returns the width of the column of names. Rows of several parameters do not use this column, so they do not count. */
static int name_width(const json_t *rows) {
  enum { LEAST = 12, MOST = 48 };
  const json_t *row;
  size_t i, width = LEAST;
  json_array_foreach(rows, i, row) {
    const json_t *names = json_object_get(row, "names");
    size_t own = json_array_size(names) == 1 ? json_string_length(json_array_get(names, 0)) : 0;
    if (own > width) width = own;
  }
  return (int)(width < MOST ? width : MOST);
}

static void print_row(FILE *file, const json_t *row, int width, const ad_paint *paint) {
  int wrong = is_judged(row, "wrong"), several = json_array_size(json_object_get(row, "names")) > 1;
  const char *differ = json_is_true(json_object_get(row, "differ")) ? " (the first; numbers differ)" : "";
  char label[512];
  fprintf(file, "  %s%s%s  %-*s%s %s%s\n", wrong ? paint->bad : paint->open, wrong ? "BAD" : "?? ", paint->off,
          several ? 0 : width, ad_report_row_label(row, label, sizeof label), several ? ":" : " ",
          ad_text_of(row, "text"), differ);
}

static void print_params(FILE *file, const json_t *document, int alone, const ad_paint *paint) {
  const json_t *params = json_object_get(document, "params"), *row;
  json_t *rows = ad_report_rows(params, alone);
  size_t i, right = count_judged(params, "right");
  int width = name_width(rows);
  if (right)
    fprintf(file, "  %sok%s   %zu parameter%s: every addend is counted once\n", paint->good, paint->off, right,
            ad_plural((long long)right));
  json_array_foreach(rows, i, row) print_row(file, row, width, paint);
  json_decref(rows);
}

static void print_messages(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *message;
  size_t i;
  json_array_foreach(json_object_get(document, "messages"), i, message)
      fprintf(file, "  %snote%s %s\n", paint->dim, paint->off, json_string_value(message));
}

static void print_norm(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *norm = json_object_get(document, "norm");
  if (!json_is_object(norm)) return;
  int right = !json_is_false(json_object_get(norm, "pass"));
  fprintf(file, "  %s%-4s%s norm: %s\n", right ? paint->good : paint->bad, right ? "ok" : "BAD", paint->off,
          ad_text_of(norm, "text"));
}

static int some_are_identical(const json_t *params) {
  const json_t *param;
  size_t i;
  json_array_foreach(params, i, param) if (ad_cause_named(ad_text_of(param, "kind")) == AD_CAUSE_IDENTICAL) return 1;
  return 0;
}

static void print_words(FILE *file, const json_t *document, const ad_paint *paint) {
  ad_verdict_word verdict = is_judged(document, "right")         ? AD_MATCHES
                            : is_judged(document, "cannot_tell") ? AD_CANNOT_TELL
                                                                 : AD_DOES_NOT_MATCH;
  const char *colour = verdict == AD_MATCHES ? paint->good : verdict == AD_CANNOT_TELL ? paint->open : paint->bad;
  fprintf(file, "%s%s%s: ", colour, ad_verdict_words(verdict), paint->off);
}

static void print_doubt(FILE *file, size_t undecided, const json_t *params) {
  fprintf(file, "%zu of %zu parameter%s%s", undecided, json_array_size(params),
          ad_plural((long long)json_array_size(params)),
          some_are_identical(params)
              ? "; give each rank its own batch, or --allow-identical where addends are meant to be equal"
              : "");
}

static void print_mismatch(FILE *file, size_t wrong, size_t undecided, const json_t *params) {
  if (wrong)
    fprintf(file, "%zu of %zu parameter%s", wrong, json_array_size(params),
            ad_plural((long long)json_array_size(params)));
  else
    fprintf(file, "the norm");
  if (undecided) fprintf(file, "; of %zu %s it cannot tell", undecided, wrong ? "more" : "parameters");
}

/* Prints the verdict on one dump. */
static void print_verdict(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *params = json_object_get(document, "params");
  size_t wrong = count_judged(params, "wrong"), undecided = count_judged(params, "cannot_tell");
  print_words(file, document, paint);
  if (is_judged(document, "right"))
    fprintf(file, "%zu parameter%s", json_array_size(params), ad_plural((long long)json_array_size(params)));
  else if (is_judged(document, "cannot_tell"))
    print_doubt(file, undecided, params);
  else
    print_mismatch(file, wrong, undecided, params);
  fprintf(file, "\n");
}

/* Prints the verdict on the dump of several modules. */
static void print_verdict_of_modules(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *modules = json_object_get(document, "modules");
  const char *counted = is_judged(document, "right")         ? "right"
                        : is_judged(document, "cannot_tell") ? "cannot_tell"
                                                             : "wrong";
  print_words(file, document, paint);
  fprintf(file, "%zu of %zu modules\n", count_judged(modules, counted), json_array_size(modules));
}

static void print_dump(FILE *file, const json_t *document, int alone, const ad_paint *paint) {
  print_head(file, document, paint);
  print_declared(file, document, paint);
  print_params(file, document, alone, paint);
  print_norm(file, document, paint);
  print_messages(file, document, paint);
  fprintf(file, "\n");
}

static void print_modules(FILE *file, const json_t *document, int alone, const ad_paint *paint) {
  const json_t *modules = json_object_get(document, "modules"), *module;
  size_t i;
  json_array_foreach(modules, i, module) {
    fprintf(file, "%s`%s`%s: ", paint->bold, ad_text_of(module, "module"), paint->off);
    print_dump(file, module, alone, paint);
    print_verdict(file, module, paint);
    fprintf(file, "\n");
  }
}

/* Prints the command that explains what was found: "addend explain PAGE ...". */
static void print_pages(FILE *file, const json_t *document, const ad_paint *paint) {
  json_t *pages = ad_report_pages(document);
  const json_t *page;
  size_t i;
  if (json_array_size(pages)) fprintf(file, "%smore: addend explain", paint->dim);
  json_array_foreach(pages, i, page) fprintf(file, " %s", json_string_value(page));
  if (json_array_size(pages)) fprintf(file, "%s\n", paint->off);
  json_decref(pages);
}

/* How a document is printed. */
typedef struct printing {
  int alone; /* 1: a line for each parameter that is not right */
  const ad_paint *paint;
} printing;

static void print_diff(FILE *file, const json_t *document, const void *context) {
  const printing *how = context;
  int has_modules = json_object_get(document, "modules") != NULL;
  void (*verdict)(FILE *, const json_t *, const ad_paint *) = has_modules ? print_verdict_of_modules : print_verdict;
  verdict(file, document, how->paint);
  fprintf(file, "\n");
  (has_modules ? print_modules : print_dump)(file, document, how->alone, how->paint);
  print_pages(file, document, how->paint);
  verdict(file, document, how->paint);
}

ad_status ad_diff_table(const char *json, ad_text_style style, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "dump", print_diff, &(printing){0, ad_paint_of(style)}, out);
}

ad_status ad_diff_list(const char *json, ad_text_style style, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "dump", print_diff, &(printing){1, ad_paint_of(style)}, out);
}
