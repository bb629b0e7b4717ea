/* Groups parameters whose verdicts have the same text, and lists the pages of `addend explain` about them. */
#include "say/report_rows.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include "say/cause.h"
#include "say/guide.h"
#include "files/json.h"

static int is_right(const json_t *object) { return !strcmp(ad_text_of(object, "verdict"), "right"); }

/* ---- rows of a table: parameters with the same verdict ---- */

/* Returns the length of the measured number (with a point or an exponent) at the start of text, or 0 if there is
 * none. */
static size_t measured_length(const char *text) {
  size_t length = strspn(text, "0123456789.");
  if (!isdigit((unsigned char)*text)) return 0;
  if (text[length] == 'e' && text[length + 1] && strchr("+-", text[length + 1]))
    return length + 2 + strspn(text + length + 2, "0123456789");
  return memchr(text, '.', length) ? length : 0;
}

/* Copies a text with '#' in place of each measured number; if `any` is 1, integers are replaced too. */
static void leave_out_numbers(const char *text, int any, char *out, size_t size) {
  size_t used = 0;
  while (*text && used + 1 < size) {
    size_t whole = strspn(text, "0123456789"), measured = measured_length(text), kept = whole ? whole : 1;
    if (any && whole > measured) measured = whole;
    if (measured) out[used++] = '#';
    for (size_t i = 0; i < kept && !measured && used + 1 < size; i++) out[used++] = text[i];
    text += measured ? measured : kept;
  }
  out[used] = 0;
}

/* Prints a key that is the same for parameters that share a row. If the verdict has a factor, the numbers are part of
 * the key; otherwise measured numbers may differ. */
static void print_key(const json_t *param, char *key, size_t size) {
  const char *reported = ad_text_of(param, "text"), *kind = ad_text_of(param, "kind");
  char text[1024];
  if (json_is_number(json_object_get(param, "factor")))
    snprintf(text, sizeof text, "%s", reported);
  else
    leave_out_numbers(reported, ad_cause_named(kind) == AD_CAUSE_UNEXPLAINED, text, sizeof text);
  snprintf(key, size, "%s %s %s", ad_text_of(param, "verdict"), kind, text);
}

static json_t *new_row(const json_t *param) {
  return json_pack("{s:s, s:s, s:s, s:[], s:b}", "verdict", ad_text_of(param, "verdict"), "kind",
                   ad_text_of(param, "kind"), "text", ad_text_of(param, "text"), "names", "differ", 0);
}

static void add_name(json_t *row, const json_t *param) {
  json_array_append(json_object_get(row, "names"), json_object_get(param, "name"));
  if (strcmp(ad_text_of(row, "text"), ad_text_of(param, "text")) != 0) json_object_set_new(row, "differ", json_true());
}

json_t *ad_report_rows(const json_t *params, int alone) {
  json_t *rows = json_array(), *by_key = json_object();
  const json_t *param;
  char key[1100];
  size_t i;
  json_array_foreach(params, i, param) {
    if (is_right(param)) continue;
    print_key(param, key, sizeof key);
    json_t *row = alone ? NULL : json_object_get(by_key, key);
    if (!row) {
      row = new_row(param);
      json_array_append(rows, row);
      json_object_set_new(by_key, key, row);
    }
    add_name(row, param);
  }
  json_decref(by_key);
  return rows;
}

const char *ad_report_row_label(const json_t *row, char *buffer, size_t size) {
  const json_t *names = json_object_get(row, "names");
  size_t count = json_array_size(names);
  const char *first = json_string_value(json_array_get(names, 0));
  if (count < 2)
    snprintf(buffer, size, "%s", first ? first : "");
  else
    snprintf(buffer, size, "%zu parameters (%s%s%s)", count, first, count == 2 ? ", " : " ... ",
             json_string_value(json_array_get(names, count - 1)));
  return buffer;
}

/* ---- pages of `addend explain` ---- */

/* Adds a page if there is one with this name and it is not listed yet. */
static void add_page(json_t *pages, const char *name) {
  const json_t *page;
  size_t i;
  json_array_foreach(pages, i, page) if (!strcmp(json_string_value(page), name)) return;
  if (ad_guide_has(name)) json_array_append_new(pages, json_string(name));
}

static void add_pages_of_param(json_t *pages, const json_t *param) {
  const json_t *causes = json_object_get(param, "possible_causes"), *cause = json_object_get(param, "cause");
  size_t i;
  if (is_right(param)) return;
  if (json_is_object(cause)) add_page(pages, ad_text_of(cause, "kind"));
  json_array_foreach(causes, i, cause) add_page(pages, ad_text_of(cause, "kind"));
  add_page(pages, ad_text_of(param, "kind"));
}

static void add_pages(json_t *pages, const json_t *document) {
  const json_t *param, *module;
  size_t i;
  json_array_foreach(json_object_get(document, "params"), i, param) add_pages_of_param(pages, param);
  if (json_is_false(json_object_get(json_object_get(document, "norm"), "pass"))) add_page(pages, "norm");
  json_array_foreach(json_object_get(document, "modules"), i, module) add_pages(pages, module);
}

json_t *ad_report_pages(const json_t *document) {
  json_t *pages = json_array();
  add_pages(pages, document);
  return pages;
}
