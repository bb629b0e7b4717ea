/* Lists of causes, the JSON documents made of causes, and the sentences that print them. */
#include "say/cause.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "addend/diff.h"
#include "base/text.h"

const ad_cause_row *ad_cause_row_of(ad_cause_kind kind) {
  static const ad_cause_row rows[] = {
#define AD_CAUSE_ROW(code, name, words, verdict, checked, counted) \
  [AD_CAUSE_##code] = {name, AD_ANSWER_##verdict, AD_CAUSE_##checked, counted},
      AD_CAUSE_LIST(AD_CAUSE_ROW)
#undef AD_CAUSE_ROW
  };
  return &rows[kind];
}

const char *ad_cause_name(ad_cause_kind kind) { return ad_cause_row_of(kind)->name; }

ad_cause_kind ad_cause_named(const char *name) {
  for (int kind = 0; kind < AD_CAUSE_COUNT && name; kind++)
    if (!strcmp(ad_cause_name((ad_cause_kind)kind), name)) return (ad_cause_kind)kind;
  return AD_CAUSE_UNKNOWN;
}

int ad_kind_is_counted(const char *kind) {
  for (int i = 0; i < AD_CAUSE_COUNT && kind; i++)
    if (!strcmp(ad_cause_name((ad_cause_kind)i), kind)) return ad_cause_row_of((ad_cause_kind)i)->counted;
  return -1;
}

ad_cause *ad_causes_add(ad_causes *causes, ad_cause_kind kind, ad_axes axes, double factor, const char *format, ...) {
  static _Thread_local ad_cause left_out;
  ad_cause *cause = causes->count < AD_CAUSES ? &causes->list[causes->count++] : &left_out;
  va_list list;
  *cause = (ad_cause){.kind = kind, .axes = axes, .factor = factor};
  va_start(list, format);
  vsnprintf(cause->text, sizeof cause->text, format, list);
  va_end(list);
  return cause;
}

void ad_causes_copy(ad_causes *out, const ad_causes *causes) {
  out->count = causes->count;
  memcpy(out->list, causes->list, (size_t)causes->count * sizeof *causes->list);
}

/* ---- JSON documents of causes ---- */

json_t *ad_cause_document(const char *kind, const char *axes, double factor, const char *text, const char *place) {
  return json_pack("{s:s, s:s, s:o, s:s, s:o}", "kind", kind, "axes", axes, "factor",
                   isfinite(factor) ? json_real(factor) : json_null(), "text", text, "place",
                   *place ? json_string(place) : json_null());
}

void ad_cause_set(json_t *document, json_t *causes) {
  int several = json_array_size(causes) > 1;
  json_t *only = several ? NULL : json_array_get(causes, 0);
  json_object_set_new(document, "cause", only ? json_incref(only) : json_null());
  json_object_set_new(document, "possible_causes", several ? json_incref(causes) : json_array());
  json_decref(causes);
}

int ad_cause_is_reported(const json_t *document) {
  return json_is_object(json_object_get(document, "cause")) ||
         json_array_size(json_object_get(document, "possible_causes")) > 0;
}

static const char *text_of(const json_t *cause) {
  const char *text = json_string_value(json_object_get(cause, "text"));
  return text ? text : "";
}

const char *ad_causes_print(const json_t *causes, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  const json_t *cause;
  size_t i, count = json_array_size(causes);
  json_array_foreach(causes, i, cause) {
    size_t room = i + 1 < count ? sizeof "; and 99 more" : 0;
    if (i && text.used + 2 + strlen(text_of(cause)) + room >= size) {
      ad_text_add(&text, "; and %zu more", count - i);
      break;
    }
    ad_text_add(&text, "%s%s", i ? "; " : count > 1 ? "possible causes: " : "", text_of(cause));
  }
  return buffer;
}

const char *ad_cause_print(const json_t *document, char *buffer, size_t size) {
  const json_t *cause = json_object_get(document, "cause");
  if (!json_is_object(cause)) return ad_causes_print(json_object_get(document, "possible_causes"), buffer, size);
  snprintf(buffer, size, "%s", text_of(cause));
  return buffer;
}
