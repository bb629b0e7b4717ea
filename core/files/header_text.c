/* Splits headers, and reuses what two headers have in common. If a header is unusual in any way, the functions return
 * 0; safetensors.c then parses the whole header and finds its faults. */
#include "files/header_text.h"

#include <string.h>

/* A position in the text, and the end of the text. */
typedef struct ad_cursor {
  const char *at, *end;
} ad_cursor;

static void skip_space(ad_cursor *cursor) {
  while (cursor->at < cursor->end && strchr(" \t\n\r", *cursor->at) && *cursor->at) cursor->at++;
}

/* Steps over white space and then over `text`. Returns 0 if something else follows the white space. */
static int skip_text(ad_cursor *cursor, const char *text) {
  size_t length = strlen(text);
  skip_space(cursor);
  if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, text, length) != 0) return 0;
  cursor->at += length;
  return 1;
}

/* Returns 1 if the quote ends a string, which it does if an even number of backslashes precedes it; does not look
 * before `begin`. */
static int ends(const char *begin, const char *quote) {
  const char *at = quote;
  while (at > begin && at[-1] == '\\') at--;
  return (quote - at) % 2 == 0;
}

/* Steps over a JSON string; *out and *length are the string with its quotes. Returns 0 if there is none. */
static int take_string(ad_cursor *cursor, const char **out, size_t *length) {
  const char *begin = cursor->at, *quote = begin;
  if (begin == cursor->end || *begin != '"') return 0;
  do {
    quote = memchr(quote + 1, '"', (size_t)(cursor->end - quote - 1));
  } while (quote && !ends(begin + 1, quote));
  if (!quote) return 0;
  cursor->at = quote + 1;
  *out = begin;
  *length = (size_t)(cursor->at - begin);
  return 1;
}

/* Returns the pair of `text` with the same key, NULL if there is none. */
static const ad_header_pair *find_pair(const ad_header_text *text, const ad_header_pair *key) {
  for (size_t i = 0; text && i < text->count; i++)
    if (text->pairs[i].key_length == key->key_length && !memcmp(text->pairs[i].key, key->key, key->key_length))
      return &text->pairs[i];
  return NULL;
}

/* Steps over the value of the pair `same` if the same bytes follow the cursor; else returns 0. Comparing the bytes of
 * the value is enough: they include its quotes, so the string at the cursor ends where the value ends. */
static int take_same(ad_cursor *cursor, const ad_header_pair *same, ad_header_pair *pair) {
  if (!same || (size_t)(cursor->end - cursor->at) < same->value_length ||
      memcmp(cursor->at, same->value, same->value_length) != 0)
    return 0;
  pair->value = cursor->at;
  pair->value_length = same->value_length;
  cursor->at += same->value_length;
  return 1;
}

/* Parses a JSON string. Returns NULL if it is no JSON. */
static json_t *parse_json_string(const char *string, size_t length) {
  return json_loadb(string, length, JSON_DECODE_ANY, NULL);
}

/* Returns the parsed value of a pair; it is borrowed. */
static json_t *pair_value(const ad_header_text *text, const ad_header_pair *pair) {
  json_t *key = parse_json_string(pair->key, pair->key_length);
  json_t *value = json_object_get(text->metadata, json_string_value(key));
  json_decref(key);
  return value;
}

/* Adds a pair to `metadata`. Returns 0 if the key or the value is no text (`value` NULL), or if the key was there
 * before. */
static int add_value(json_t *metadata, const ad_header_pair *pair, json_t *value) {
  json_t *key = parse_json_string(pair->key, pair->key_length);
  int added = key && value && !json_object_get(metadata, json_string_value(key)) &&
              !json_object_set(metadata, json_string_value(key), value);
  json_decref(key);
  return added;
}

/* Steps over a pair of key and value. `like` is a header whose parsed value is reused if it has the same pair, or NULL.
 * `metadata` gets the parsed value, unless it is NULL. */
static int take_pair(ad_cursor *cursor, const ad_header_text *like, json_t *metadata, ad_header_pair *pair) {
  if (!take_string(cursor, &pair->key, &pair->key_length) || !skip_text(cursor, ":")) return 0;
  skip_space(cursor);
  const ad_header_pair *same = find_pair(like, pair);
  int is_same = take_same(cursor, same, pair);
  if (!is_same && !take_string(cursor, &pair->value, &pair->value_length)) return 0;
  if (!metadata) return 1;
  json_t *value = is_same ? json_incref(pair_value(like, same)) : parse_json_string(pair->value, pair->value_length);
  int added = add_value(metadata, pair, value);
  json_decref(value);
  return added;
}

/* Steps over the metadata and fills out->pairs and out->rest. Returns 0 if the header does not begin with metadata. */
static int take_pairs(ad_cursor *cursor, const ad_header_text *like, ad_header_text *out) {
  if (!skip_text(cursor, "{") || !skip_text(cursor, "\"__metadata__\"") || !skip_text(cursor, ":") ||
      !skip_text(cursor, "{"))
    return 0;
  do {
    skip_space(cursor);
    if (out->count == AD_HEADER_PAIRS || !take_pair(cursor, like, out->metadata, &out->pairs[out->count])) return 0;
    out->count++;
  } while (skip_text(cursor, ","));
  out->rest = cursor->at;
  out->rest_length = (size_t)(cursor->end - cursor->at);
  return skip_text(cursor, "}");
}

/* Returns the length without the spaces at the end. Writers pad headers with spaces up to a multiple of some bytes, and
 * the number of spaces differs even between files with the same tensors. */
static size_t without_filling(const char *text, size_t length) {
  while (length && text[length - 1] == ' ') length--;
  return length;
}

void ad_header_text_split(const char *text, size_t length, ad_header_text *out) {
  ad_header_text split = {0};
  ad_cursor cursor = {text, text + without_filling(text, length)};
  if (!out->metadata || !take_pairs(&cursor, NULL, &split)) return;
  split.metadata = out->metadata;
  *out = split;
}

int ad_header_text_like(const ad_header_text *like, const char *text, size_t length, ad_header_text *out) {
  ad_header_text own = {0};
  length = without_filling(text, length);
  ad_cursor cursor = {text, text + length};
  if (!like->rest || length < like->rest_length) return 0;
  if (memcmp(text + length - like->rest_length, like->rest, like->rest_length) != 0) return 0;
  own.metadata = json_object();
  if (own.metadata && take_pairs(&cursor, like, &own) && own.rest_length == like->rest_length) return *out = own, 1;
  json_decref(own.metadata);
  return 0;
}

void ad_header_text_clear(ad_header_text *text) {
  json_decref(text->metadata);
  *text = (ad_header_text){0};
}
