/* The text of a safetensors header in two parts: its metadata, pair by pair, and all behind them, the tensors. What one
 * file's header shares with another's is found by bytes, and was parsed with that one. */
#ifndef FILES_HEADER_TEXT_H
#define FILES_HEADER_TEXT_H
#include <jansson.h>
#include <stddef.h>

enum { AD_HEADER_PAIRS = 32 };

/* A key and its value, as they stand in the text with their quotes. */
typedef struct ad_header_pair {
  const char *key, *value;
  size_t key_length, value_length;
} ad_header_pair;

/* The text is borrowed. */
typedef struct ad_header_text {
  json_t *metadata; /* texts by key; NULL: none */
  ad_header_pair pairs[AD_HEADER_PAIRS];
  size_t count;
  const char *rest; /* behind the last pair, from the "}" to the last one, without spaces that fill the header up;
                       NULL: it could not be split */
  size_t rest_length;
} ad_header_text;

/* Splits the text of a header that was parsed: its metadata must come first, with at most AD_HEADER_PAIRS keys. */
void ad_header_text_split(const char *text, size_t length, ad_header_text *out);
/* 1: this header's tensors are those of `like` byte for byte, and its metadata are texts; *out has both. 0: *out is
 * unchanged, and nothing is said of the header. */
int ad_header_text_like(const ad_header_text *like, const char *text, size_t length, ad_header_text *out);
void ad_header_text_clear(ad_header_text *text);

#endif
