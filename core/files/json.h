/* Reads JSON documents from files, and makes texts for them. */
#ifndef FILES_JSON_H
#define FILES_JSON_H
#include <jansson.h>
#include <math.h>
#include "addend/status.h"
#include "base/internal.h"

/* Parses a text as json_loadb does, with its flags. Returns AD_OK if *out is the document, or if *out is NULL because
 * the text is no JSON (*error says why). Returns AD_MEMORY if the text was not parsed. Tests first whether there is
 * enough memory, because without memory jansson would report a syntax error or truncate a name. */
AD_INTERNAL AD_CHECKED ad_status ad_json_parse(const char *text, size_t size, size_t flags, json_t **out,
                                               json_error_t *error);
/* Reads the JSON object in a file; free it with json_decref. AD_IO names the path and what is wrong: the file cannot be
 * read, is larger than any document of addend's, is no JSON (with the line), or is not an object. */
AD_INTERNAL AD_CHECKED ad_status ad_json_read(const char *path, json_t **out);
/* Replaces every text of the document by its printable form (ad_printable), for tables. Returns -1 if there is no
 * memory. */
AD_CHECKED int ad_json_make_printable(json_t *document);
/* Returns a document as commands print it: one line for each entry, keys in the order in which they were set, numbers
 * with all their digits. Characters that control a terminal (ad_control_at) are written as \uHHHH, so that a terminal
 * can show the document. Free the text with ad_release. Returns NULL if there is no memory. */
AD_INTERNAL char *ad_json_dumps(const json_t *document);
/* Makes a JSON string of a text from outside. If the text is not UTF-8, which JSON cannot express, each of its bytes
 * beyond ASCII becomes '?'. Returns NULL if there is no memory. */
AD_INTERNAL json_t *ad_json_text(const char *text);

/* These functions return the member `key` of an object as a text, an integer or a number; if the member is missing or
 * of another kind, they return "", 0 or NaN. */
static inline const char *ad_text_of(const json_t *object, const char *key) {
  const char *text = json_string_value(json_object_get(object, key));
  return text ? text : "";
}
static inline long long ad_integer_of(const json_t *object, const char *key) {
  return (long long)json_integer_value(json_object_get(object, key));
}
static inline double ad_number_of(const json_t *object, const char *key) {
  const json_t *value = json_object_get(object, key);
  return json_is_number(value) ? json_number_value(value) : NAN;
}

#endif
