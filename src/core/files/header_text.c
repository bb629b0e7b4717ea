/* Splitting headers, and taking over what another one has. Anything unusual in a header gives 0: then its reader parses
 * the whole, and that finds what is wrong with it. */
#include "files/header_text.h"

#include <string.h>

typedef struct ad_cursor {
  const char *at, *end;
} ad_cursor;

static void skip_space(ad_cursor *cursor) {
  while (cursor->at < cursor->end && strchr(" \t\n\r", *cursor->at) && *cursor->at) cursor->at++;
}

/* Steps over `text`, with space before it. */
static int take(ad_cursor *cursor, const char *text) {
  size_t length = strlen(text);
  skip_space(cursor);
  if ((size_t)(cursor->end - cursor->at) < length || memcmp(cursor->at, text, length) != 0) return 0;
  cursor->at += length;
  return 1;
}

/* Whether the quote that stands here has an even number of backslashes before it, from `begin` on. */
static int ends(const char *begin, const char *quote) {
  const char *at = quote;
  while (at > begin && at[-1] == '\\') at--;
  return (quote - at) % 2 == 0;
}

/* Steps over a string, with its quotes. */
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

static const ad_header_pair *find(const ad_header_text *text, const ad_header_pair *key) {
  for (size_t i = 0; text && i < text->count; i++)
    if (text->pairs[i].key_length == key->key_length && !memcmp(text->pairs[i].key, key->key, key->key_length))
      return &text->pairs[i];
  return NULL;
}

/* The string of `same` if it stands here: where the same bytes begin with a quote the same quote ends them. */
static int take_same(ad_cursor *cursor, const ad_header_pair *same, ad_header_pair *pair) {
  if (!same || (size_t)(cursor->end - cursor->at) < same->value_length ||
      memcmp(cursor->at, same->value, same->value_length) != 0)
    return 0;
  pair->value = cursor->at;
  pair->value_length = same->value_length;
  cursor->at += same->value_length;
  return 1;
}

/* The text that a string stands for; NULL: it is no JSON. */
static json_t *parse(const char *string, size_t length) { return json_loadb(string, length, JSON_DECODE_ANY, NULL); }

/* The value under a key as it stands in the text; borrowed. */
static json_t *value_of(const ad_header_text *text, const ad_header_pair *pair) {
  json_t *key = parse(pair->key, pair->key_length);
  json_t *value = json_object_get(text->metadata, json_string_value(key));
  json_decref(key);
  return value;
}

/* 0: the value (NULL) or its key is no text, or the key stands twice. */
static int add_value(json_t *metadata, const ad_header_pair *pair, json_t *value) {
  json_t *key = parse(pair->key, pair->key_length);
  int added = key && value && !json_object_get(metadata, json_string_value(key)) &&
              !json_object_set(metadata, json_string_value(key), value);
  json_decref(key);
  return added;
}

/* `like`: NULL, or the text whose values are taken over where they are the same; `metadata`: NULL, or gets the values.
 */
static int take_pair(ad_cursor *cursor, const ad_header_text *like, json_t *metadata, ad_header_pair *pair) {
  if (!take_string(cursor, &pair->key, &pair->key_length) || !take(cursor, ":")) return 0;
  skip_space(cursor);
  const ad_header_pair *same = find(like, pair);
  int is_same = take_same(cursor, same, pair);
  if (!is_same && !take_string(cursor, &pair->value, &pair->value_length)) return 0;
  if (!metadata) return 1;
  json_t *value = is_same ? json_incref(value_of(like, same)) : parse(pair->value, pair->value_length);
  int added = add_value(metadata, pair, value);
  json_decref(value);
  return added;
}

static int take_pairs(ad_cursor *cursor, const ad_header_text *like, ad_header_text *out) {
  if (!take(cursor, "{") || !take(cursor, "\"__metadata__\"") || !take(cursor, ":") || !take(cursor, "{")) return 0;
  do {
    skip_space(cursor);
    if (out->count == AD_HEADER_PAIRS || !take_pair(cursor, like, out->metadata, &out->pairs[out->count])) return 0;
    out->count++;
  } while (take(cursor, ","));
  out->rest = cursor->at;
  out->rest_length = (size_t)(cursor->end - cursor->at);
  return take(cursor, "}");
}

/* Writers fill headers with spaces up to a multiple of some bytes: how many that takes differs between files whose
 * tensors are the same. */
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
