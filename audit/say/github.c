/* Prints the document of a diff as GitHub Actions workflow commands: one annotation for each norm, message, or group of
 * equal parameters that is not right. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "addend/diff.h"
#include "addend/verdict.h"
#include "base/error.h"
#include "say/report_rows.h"
#include "files/printed.h"
#include "base/verdict.h"

/* Prints text, with each character of `special` as %XX, which a runner decodes. '%' and line ends must be escaped; in a
 * title, ':' and ',' too. */
static void print_escaped(FILE *file, const char *text, const char *special) {
  for (; *text; text++) {
    if (strchr(special, *text))
      fprintf(file, "%%%02X", (unsigned)(unsigned char)*text);
    else
      fputc(*text, file);
  }
}

/* Prints one annotation. `level` is "error", "warning" or "notice"; `module` and `label` may be "". */
static void annotate(FILE *file, const char *level, const char *module, const char *title, const char *label,
                     const char *text) {
  fprintf(file, "::%s title=", level);
  print_escaped(file, "addend: ", "%\r\n:,");
  print_escaped(file, title, "%\r\n:,");
  fputs("::", file);
  if (*module) {
    print_escaped(file, module, "%\r\n");
    fputs(": ", file);
  }
  print_escaped(file, label, "%\r\n");
  if (*label) fputs(": ", file);
  print_escaped(file, text, "%\r\n");
  fputc('\n', file);
}

/* Prints one annotation for each parameter, or group of equal parameters, that is not right. */
static void annotate_params(FILE *file, const json_t *document, const char *module) {
  json_t *rows = ad_report_rows(json_object_get(document, "params"), 0);
  const json_t *row;
  char label[512];
  size_t i;
  json_array_foreach(rows, i, row) {
    int wrong = !strcmp(ad_text_of(row, "verdict"), "wrong");
    annotate(file, wrong ? "error" : "warning", module, ad_text_of(row, "kind"),
             ad_report_row_label(row, label, sizeof label), ad_text_of(row, "text"));
  }
  json_decref(rows);
}

static void annotate_dump(FILE *file, const json_t *document, const char *module) {
  const json_t *norm = json_object_get(document, "norm"), *message;
  char count[64];
  size_t i;
  annotate_params(file, document, module);
  if (json_is_false(json_object_get(norm, "pass")))
    annotate(file, "error", module, "norm", "norm", ad_text_of(norm, "text"));
  json_array_foreach(json_object_get(document, "messages"), i, message)
      annotate(file, "notice", module, "note", "", json_string_value(message));
  if (strcmp(ad_text_of(document, "verdict"), "right") != 0) return;
  size_t params = json_array_size(json_object_get(document, "params"));
  snprintf(count, sizeof count, "%zu parameter%s: every addend is counted once", params, ad_plural((long long)params));
  annotate(file, "notice", module, ad_verdict_words(AD_MATCHES), "", count);
}

static void annotate_all(FILE *file, const json_t *document, const void *context) {
  const json_t *modules = json_object_get(document, "modules"), *module;
  size_t i;
  if (!modules) annotate_dump(file, document, "");
  json_array_foreach(modules, i, module) annotate_dump(file, module, ad_text_of(module, "module"));
}

ad_status ad_diff_github(const char *json, char **out) {
  AD_NEED(json, out);
  return ad_document_print(json, "dump", annotate_all, NULL, out);
}
