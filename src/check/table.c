/* The document of a check as tables for people. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "addend/check.h"
#include "base/error.h"

typedef struct ad_paint {
  const char *good, *bad, *dim, *bold, *off;
} ad_paint;
static const ad_paint colours = {"\033[32m", "\033[31m", "\033[2m", "\033[1m", "\033[0m"};
static const ad_paint plain = {"", "", "", "", ""};

static const char *text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static double number_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

static int is_true(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

static const char *plural(long long count) { return count == 1 ? "" : "s"; }

static void print_head(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *loss = json_object_get(document, "loss"), *norm = json_object_get(document, "norm");
  long long ranks = json_integer_value(json_object_get(document, "world"));
  long long steps = json_integer_value(json_object_get(document, "steps"));
  fprintf(file, "%s%s%s  %lld rank%s, mesh %s, %s, %lld step%s\n", paint->bold, text_of(document, "recipe"), paint->off,
          ranks, plural(ranks), text_of(document, "mesh"), text_of(document, "dtype"), steps, plural(steps));
  fprintf(file, "loss %.12g", number_of(loss, "dist"));
  if (json_is_number(json_object_get(loss, "ref"))) fprintf(file, ", reference %.12g", number_of(loss, "ref"));
  fprintf(file, "; gradient norm %.12g", number_of(norm, "dist"));
  if (json_is_number(json_object_get(norm, "ref"))) fprintf(file, ", reference %.12g", number_of(norm, "ref"));
  fprintf(file, "\n");
}

static int param_holds(const json_t *param) {
  return is_true(param, "replicas_equal") && number_of(param, "max_rel_err") <= number_of(param, "bound");
}

static void print_param(FILE *file, const json_t *param, const ad_paint *paint) {
  int holds = param_holds(param);
  const char *over = text_of(param, "reduced_over");
  fprintf(file, "  %s%-4s%s %-24s %-26s %-11.9g %-10.2g %-8s", holds ? paint->good : paint->bad, holds ? "ok" : "BAD",
          paint->off, text_of(param, "name"), *over ? over : "-", number_of(param, "ratio"),
          number_of(param, "max_rel_err"), is_true(param, "replicas_equal") ? "equal" : "DIFFER");
  const json_t *cause = json_object_get(param, "cause");
  if (json_is_object(cause)) fprintf(file, " %s%s%s", paint->bad, text_of(cause, "text"), paint->off);
  fprintf(file, "\n");
}

static void print_params(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *params = json_object_get(document, "params"), *param;
  size_t i;
  if (!json_array_size(params)) return;
  fprintf(file, "\n  %s%-4s %-24s %-26s %-11s %-10s %-8s%s\n", paint->dim, "", "parameter", "summed over", "ratio",
          "worst err", "replicas", paint->off);
  json_array_foreach(params, i, param) print_param(file, param, paint);
}

static void print_directional(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *directional = json_object_get(document, "directional");
  if (!directional) return;
  fprintf(file, "\n  difference quotient %.12g, <gradient, direction> %.12g: relative error %.2g, bound %.0e\n",
          number_of(directional, "difference"), number_of(directional, "derivative"), number_of(directional, "rel_err"),
          number_of(directional, "bound"));
}

static void print_sabotage(FILE *file, const json_t *sabotage, const ad_paint *paint) {
  const char *caught = text_of(sabotage, "caught_by"), *message = text_of(sabotage, "message");
  int survived = strcmp(caught, "none") == 0;
  fprintf(file, "  %s%-9s%s %-42s", survived ? paint->bad : paint->good, survived ? "SURVIVED" : caught, paint->off,
          text_of(sabotage, "name"));
  const json_t *cause = json_object_get(sabotage, "cause");
  if (json_is_number(json_object_get(sabotage, "ratio"))) fprintf(file, " ratio %-10.6g", number_of(sabotage, "ratio"));
  if (json_is_object(cause)) fprintf(file, " %s: %s", text_of(sabotage, "param"), text_of(cause, "text"));
  if (*message) fprintf(file, " %.*s", (int)strcspn(message, "\n"), message);
  if (strcmp(caught, "number") == 0 && !json_is_object(cause)) fprintf(file, " the loss, the norm or an update is off");
  fprintf(file, "\n");
}

static void print_unplanted(FILE *file, const json_t *list, const ad_paint *paint) {
  const json_t *unplanted;
  size_t i;
  if (!json_array_size(list)) return;
  fprintf(file, "\n  %snot planted, for they would change nothing here%s\n", paint->dim, paint->off);
  json_array_foreach(list, i, unplanted)
      fprintf(file, "  %-9s %-42s %s\n", "-", text_of(unplanted, "name"), text_of(unplanted, "why"));
}

static void print_sabotages(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *sabotages = json_object_get(document, "sabotage"), *sabotage;
  size_t i;
  if (!sabotages) return;
  fprintf(file, "\n  %splanted mistakes, and what caught them%s\n", paint->dim, paint->off);
  json_array_foreach(sabotages, i, sabotage) print_sabotage(file, sabotage, paint);
  fprintf(file, "  %zu planted, %lld survived\n", json_array_size(sabotages),
          (long long)json_integer_value(json_object_get(document, "survivors")));
  print_unplanted(file, json_object_get(document, "not_planted"), paint);
}

static void print_number(FILE *file, const json_t *document, const char *name, const ad_paint *paint) {
  const json_t *number = json_object_get(document, name);
  if (!json_object_get(number, "bound") || number_of(number, "rel_err") <= number_of(number, "bound")) return;
  fprintf(file, "  %sBAD%s  the %s is off by %.2g, bound %.2g\n", paint->bad, paint->off, name,
          number_of(number, "rel_err"), number_of(number, "bound"));
}

/* Judged numbers that belong to no parameter: only those that fail. */
static void print_failures(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *summary = json_object_get(document, "summary");
  print_number(file, document, "loss", paint);
  print_number(file, document, "norm", paint);
  if (json_is_false(json_object_get(summary, "initial_equal")))
    fprintf(file, "  %sBAD%s  the initial values are not those that one process draws\n", paint->bad, paint->off);
  if (json_is_false(json_object_get(summary, "updates_equal")))
    fprintf(file, "  %sBAD%s  fed the same gradient, the optimizer of one process gives other bits\n", paint->bad,
            paint->off);
}

static void print_verdict(FILE *file, const json_t *document, const ad_paint *paint) {
  const json_t *summary = json_object_get(document, "summary");
  int pass = is_true(summary, "pass");
  if (pass && !json_integer_value(json_object_get(summary, "counted"))) {
    fprintf(file,
            "\n%snothing was counted%s: every gradient is zero in both, which proves nothing about sums (%.1f s)\n",
            paint->bold, paint->off, number_of(document, "seconds"));
    return;
  }
  fprintf(file, "\n%s%s%s", pass ? paint->good : paint->bad, pass ? "proven" : "NOT PROVEN", paint->off);
  if (json_integer_value(json_object_get(summary, "params")))
    fprintf(file, ": %lld parameters, worst error %.2g",
            (long long)json_integer_value(json_object_get(summary, "params")), number_of(summary, "worst_rel_err"));
  fprintf(file, " (%.1f s)\n", number_of(document, "seconds"));
}

ad_status ad_check_table(const char *json, int colour, char **out) {
  AD_NEED(json, out);
  json_error_t error;
  json_t *document = json_loads(json, 0, &error);
  if (!document) return ad_fail(AD_INVALID, "not the document of a check: line %d: %s", error.line, error.text);
  char *text = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&text, &size);
  if (file) {
    const ad_paint *paint = colour ? &colours : &plain;
    print_head(file, document, paint);
    print_params(file, document, paint);
    print_failures(file, document, paint);
    print_directional(file, document, paint);
    print_sabotages(file, document, paint);
    print_verdict(file, document, paint);
    fclose(file);
  }
  json_decref(document);
  if (!text) return ad_fail(AD_MEMORY, "no memory for the table of the proof");
  *out = text;
  return AD_OK;
}
