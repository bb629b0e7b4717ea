/* The proof's part of the report: the document of `addend check --json` as a table. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/memory.h"
#include "io/file.h"
#include "train/report.h"

static const char *text_at(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}

static void cell(FILE *page, const char *text) {
  fputs("<td>", page);
  ad_report_text(page, text);
  fputs("</td>", page);
}

static void number_cell(FILE *page, const json_t *object, const char *key, int digits) {
  const json_t *value = json_object_get(object, key);
  fputs("<td class=n>", page);
  if (json_is_number(value)) {
    fprintf(page, "%.*g", digits, json_number_value(value));
  } else {
    fputs("–", page);
  }
  fputs("</td>", page);
}

static int param_holds(const json_t *param) {
  const json_t *error = json_object_get(param, "max_rel_err"), *bound = json_object_get(param, "bound");
  return json_is_number(error) && json_number_value(error) <= json_number_value(bound) &&
         json_is_true(json_object_get(param, "replicas_equal"));
}

static void param_row(FILE *page, const json_t *param) {
  fprintf(page, "<tr class=%s>", param_holds(param) ? "yes" : "no");
  cell(page, text_at(param, "name"));
  cell(page, text_at(param, "layout"));
  cell(page, text_at(param, "reduced_over"));
  number_cell(page, param, "ratio", 9);
  number_cell(page, param, "max_rel_err", 3);
  cell(page, json_is_true(json_object_get(param, "replicas_equal")) ? "equal" : "differ");
  cell(page, text_at(json_object_get(param, "cause"), "text"));
  fputs("</tr>\n", page);
}

static void sabotage_row(FILE *page, const json_t *mistake) {
  fprintf(page, "<tr class=%s>", !strcmp(text_at(mistake, "caught_by"), "none") ? "no" : "yes");
  cell(page, text_at(mistake, "name"));
  cell(page, text_at(mistake, "caught_by"));
  cell(page, text_at(mistake, "param"));
  number_cell(page, mistake, "ratio", 6);
  const char *cause = text_at(json_object_get(mistake, "cause"), "text");
  cell(page, cause[0] ? cause : text_at(mistake, "message"));
  fputs("</tr>\n", page);
}

static void write_sabotage(FILE *page, const json_t *document) {
  const json_t *list = json_object_get(document, "sabotage");
  if (!json_array_size(list)) return;
  fprintf(
      page,
      "<h3>Known mistakes, planted; %lld of all planted mistakes survived</h3><div class=wide><table><tr><th>mistake"
      "<th>caught by<th>parameter<th>ratio<th>what the check says</tr>\n",
      (long long)json_integer_value(json_object_get(document, "survivors")));
  for (size_t i = 0; i < json_array_size(list); i++)
    if (!json_is_object(json_object_get(json_array_get(list, i), "derived")))
      sabotage_row(page, json_array_get(list, i));
  fputs("</table></div>\n", page);
}

static void write_document(FILE *page, const json_t *document) {
  const json_t *summary = json_object_get(document, "summary"), *params = json_object_get(document, "params");
  fprintf(page, "<p class=%s>%s: ", json_is_true(json_object_get(summary, "pass")) ? "yes" : "no",
          json_is_true(json_object_get(summary, "pass")) ? "It holds" : "It does not hold");
  fprintf(page, "%zu parameters on %lld ranks (<code>", json_array_size(params),
          (long long)json_integer_value(json_object_get(document, "world")));
  char *mesh = json_dumps(json_object_get(document, "mesh"), JSON_ENCODE_ANY | JSON_COMPACT);
  ad_report_text(page, mesh ? mesh : "");
  free(mesh);
  fprintf(page, "</code>) against one process, in %s. ", text_at(document, "dtype"));
  ad_report_text(page, text_at(document, "reason"));
  fputs("</p>\n", page);
  fputs(
      "<div class=wide><table><tr><th>parameter<th>layout<th>reduced over<th>ratio<th>worst error<th>replicas"
      "<th>likely cause</tr>\n",
      page);
  for (size_t i = 0; i < json_array_size(params); i++) param_row(page, json_array_get(params, i));
  fputs("</table></div>\n", page);
  ad_report_map(page, document);
  write_sabotage(page, document);
}

void ad_report_proof(FILE *page, const char *folder) {
  char *path;
  if (ad_path_in(folder, "check.json", &path)) return;
  json_t *document = json_load_file(path, 0, NULL);
  fputs("<h2>The proof</h2>\n", page);
  if (json_is_object(document)) {
    write_document(page, document);
  } else {
    fputs("<p>There was no proof in this folder when the report was written: <code>addend check RECIPE --json &gt; ",
          page);
    ad_report_text(page, path);
    fputs("</code> before training puts it here.</p>\n", page);
  }
  json_decref(document);
  ad_release(path);
}
