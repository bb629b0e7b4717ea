/* The text of a safetensors header, split in two: its metadata, pair by pair, and the rest, the tensors. If many files
 * have nearly the same header, the common parts are found by comparing bytes and are parsed only once. */
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

/* A split header. Borrows the text. */
typedef struct ad_header_text {
  json_t *metadata; /* a JSON map of keys to texts; NULL: none */
  ad_header_pair pairs[AD_HEADER_PAIRS];
  size_t count;
  /* The text behind the last pair, from the "}" that ends the metadata to the last "}", without the spaces that fill
   * the header up. NULL: the header could not be split. */
  const char *rest;
  size_t rest_length;
} ad_header_text;

/* Splits the text of a header that was parsed already. Works only if its metadata comes first and has at most
 * AD_HEADER_PAIRS keys. */
void ad_header_text_split(const char *text, size_t length, ad_header_text *out);
/* Returns 1 if this header lists the same tensors as `like`, byte for byte, and its metadata are texts; *out is then
 * the split header. Otherwise returns 0; *out is unchanged, and the header may be right or wrong. */
int ad_header_text_like(const ad_header_text *like, const char *text, size_t length, ad_header_text *out);
void ad_header_text_clear(ad_header_text *text);

#endif
