/* The text of a safetensors header, split into its metadata, pair by pair, and the rest, the tensors. If many files
 * have nearly the same header, the common parts are found by comparing bytes, and are parsed only once. */
#ifndef FILES_HEADER_TEXT_H
#define FILES_HEADER_TEXT_H
#include <jansson.h>
#include <stddef.h>

enum { AD_HEADER_PAIRS = 32 };

/* A key and its value as written in the text, with their quotes. */
typedef struct ad_header_pair {
  const char *key, *value;
  size_t key_length, value_length;
} ad_header_pair;

/* A split header. It borrows the text. */
typedef struct ad_header_text {
  json_t *metadata; /* a JSON object of keys and texts; NULL: none */
  ad_header_pair pairs[AD_HEADER_PAIRS];
  size_t count;
  /* The text after the last pair: from the "}" that ends the metadata to the last "}" of the header, without the spaces
   * that pad the header. NULL: the header could not be split. */
  const char *rest;
  size_t rest_length;
} ad_header_text;

/* Splits the text of a header that was parsed before. Fills *out only if the metadata come first in the header and have
 * at most AD_HEADER_PAIRS keys. */
void ad_header_text_split(const char *text, size_t length, ad_header_text *out);
/* Returns 1 if this header lists the same tensors as `like`, byte for byte, and its metadata are texts; *out is then
 * the split header. Otherwise returns 0 with *out unchanged; the header may still be a valid one. */
int ad_header_text_like(const ad_header_text *like, const char *text, size_t length, ad_header_text *out);
void ad_header_text_clear(ad_header_text *text);

#endif
