/* Reads JSON documents from files, and makes texts for them. */
#ifndef FILES_JSON_H
#define FILES_JSON_H
#include <jansson.h>
#include <math.h>
#include "addend/status.h"
#include "base/internal.h"

/* Parses a text as json_loadb does, with its flags. AD_OK: *out is the document, or NULL if the text is no JSON; *error
 * then says why. AD_MEMORY: the text was not parsed. Tests first whether there is enough memory, since without memory
 * jansson would report a wrong text or truncate a name. */
AD_INTERNAL AD_CHECKED ad_status ad_json_parse(const char *text, size_t size, size_t flags, json_t **out,
                                               json_error_t *error);
/* Reads the object in a file; free it with json_decref. AD_IO names the path and what is wrong: the file cannot be
 * read, is larger than any document of addend's, is no JSON (with the line), or is not an object. */
AD_INTERNAL AD_CHECKED ad_status ad_json_read(const char *path, json_t **out);
/* Replaces every text of the document by its printable form (ad_printable), for tables. Returns -1 without memory. */
AD_CHECKED int ad_json_make_printable(json_t *document);
/* A document as commands print it: a line for each entry, keys in the order in which they were set, numbers with all
 * their digits. What a terminal would obey (ad_control_at) is written as \uHHHH, so that it may show the document. Free
 * it with ad_release. NULL: no memory. */
AD_INTERNAL char *ad_json_dumps(const json_t *document);
/* Makes a JSON string of a text from outside. JSON cannot hold a text that is not UTF-8: each of its bytes beyond ASCII
 * becomes '?'. NULL: no memory. */
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
