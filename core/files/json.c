/* Reads JSON files, whatever documents they contain. jansson limits how deeply documents nest. */
#include "files/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/printable.h"
#include "files/file.h"

enum { DOCUMENT_BYTES_MAX = 1 << 27 };

ad_status ad_json_parse(const char *text, size_t size, size_t flags, json_t **out, json_error_t *error) {
  /* a document takes at most this many bytes for each byte of its text: "0," becomes a number and an entry of a list */
  enum { TIMES = 32 };
  *error = (json_error_t){.line = -1};
  *out = NULL;
  AD_TRY(ad_memory_try("a JSON text", 1 + TIMES * (size >> 20)));
  *out = ad_memory_may() ? json_loadb(text, size, flags, error) : NULL;
  if (!*out && !error->text[0]) return ad_fail(AD_MEMORY, "no memory to parse a JSON text of %zu bytes", size);
  return AD_OK;
}

/* Parses the text of a file, which must be a JSON object. */
static ad_status parse_object(const char *path, const char *text, int64_t size, json_t **out) {
  json_error_t error;
  json_t *document;
  AD_TRY(ad_json_parse(text, (size_t)size, 0, &document, &error));
  if (!document)
    return ad_fail(AD_IO, "%s: the file is not valid JSON at line %d (%s); correct the file", path, error.line,
                   error.text);
  if (!json_is_object(document)) {
    json_decref(document);
    return ad_fail(AD_IO, "%s: the file is not a JSON object, which begins with {; name another file", path);
  }
  *out = document;
  return AD_OK;
}

ad_status ad_json_read(const char *path, json_t **out) {
  char *text;
  int64_t size;
  AD_TRY(ad_file_read(path, DOCUMENT_BYTES_MAX, &text, &size));
  ad_status status = parse_object(path, text, size, out);
  ad_release(text);
  return status;
}

json_t *ad_json_text(const char *text) {
  json_t *string = json_string(text);
  char *plain;
  if (string || ad_copy_string(text, &plain)) return string;
  for (char *at = plain; *at; at++)
    if (*at & 0x80) *at = '?';
  string = json_string(plain);
  ad_release(plain);
  return string;
}

char *ad_json_dumps(const json_t *document) {
  char *plain = json_dumps(document, JSON_INDENT(1) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17)), *text, *to;
  if (!plain) return NULL;
  if (ad_new(6 * strlen(plain) + 1, &text)) { /* 6: DEL, one byte, becomes \u007f */
    free(plain);
    return NULL;
  }
  to = text;
  for (const char *at = plain; *at; at++) {
    unsigned code;
    size_t bytes = *at == '\n' ? 0 : ad_control_at(at, &code);
    if (bytes)
      to += snprintf(to, 7, "\\u%04x", code), at += bytes - 1;
    else
      *to++ = *at;
  }
  *to = 0;
  free(plain);
  return text;
}

static int make_text_printable(json_t *string) {
  char *printable;
  size_t size = 4 * json_string_length(string) + 1; /* 4: each byte may become \xHH */
  if (ad_new(size, &printable)) return -1;
  int failed = json_string_set(string, ad_printable(json_string_value(string), printable, size));
  ad_release(printable);
  return failed;
}

int ad_json_make_printable(json_t *document) {
  const char *key;
  json_t *inner;
  size_t i;
  if (json_is_string(document)) return make_text_printable(document);
  json_object_foreach(document, key, inner) {
    if (ad_json_make_printable(inner)) return -1;
  }
  json_array_foreach(document, i, inner) {
    if (ad_json_make_printable(inner)) return -1;
  }
  return 0;
}
