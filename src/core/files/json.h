/* JSON documents that lie in files, and texts for them. */
#ifndef FILES_JSON_H
#define FILES_JSON_H
#include <jansson.h>
#include <math.h>
#include "addend/status.h"
#include "base/internal.h"

/* The object in the file; json_decref it. AD_IO names the path and what is wrong: it cannot be read, is larger than a
 * document of addend's, is no JSON (and in which line), is something else than an object. */
AD_INTERNAL AD_CHECKED ad_status ad_json_read(const char *path, json_t **out);
/* Every text of the document as ad_printable prints it, in place, for tables; -1: no memory. */
AD_CHECKED int ad_json_make_printable(json_t *document);
/* For a text from outside: of one that is no UTF-8, which JSON cannot hold, each byte beyond ASCII becomes '?'. NULL:
 * no memory. */
AD_INTERNAL json_t *ad_json_text(const char *text);

/* The member `key` of an object as a text, a whole number or a number; where the member is missing or of another kind:
 * "", 0, NaN. */
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
