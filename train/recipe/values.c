/* Reads single values and lists of them from the tree of a recipe, and finds where keys are given. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "program/keys.h"
#include "recipe/reading.h"

enum { PATH_SIZE = 256, WORDS_SIZE = 96 };

/* Describes the value as it is written, for messages such as "must be ..., is ...". */
static const char *words_of(const ad_node *node, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  if (node->kind == AD_NODE_LIST) return "a list";
  if (node->kind == AD_NODE_MAP) return "a mapping";
  if (ad_node_is_empty(node)) return "empty";
  ad_text_add(&text, node->plain ? "'%.60s'" : "the text \"%.60s\"", node->text);
  return buffer;
}

void ad_reading_must_be(ad_reading *r, const ad_node *node, const char *path, const char *what) {
  char words[WORDS_SIZE];
  ad_recipe_errors_add(&r->errors, node->place, path, "must be %s, but is %s", what,
                       words_of(node, words, sizeof words));
}

/* ---- reading single values: each function returns 1, or adds an error and returns 0 ---- */

static int within(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, double value) {
  char words[AD_KEY_WORDS_SIZE];
  if (!ad_key_refuses(key, value, node->text, words)) return 1;
  ad_recipe_errors_add(&r->errors, node->place, path, "%s", words);
  return 0;
}

/* Returns 1 if the text has only digits, signs and, with `fraction`, a point and an exponent. strtod would also accept
 * hexadecimal, "inf" and leading spaces. */
static int is_number(const char *text, int fraction) {
  size_t allowed = strspn(text, fraction ? "+-0123456789.eE" : "+-0123456789");
  return *text && !text[allowed];
}

static int read_integer(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  int64_t value = 0;
  int good = node->kind == AD_NODE_SCALAR && node->plain && is_number(node->text, 0);
  if (good) {
    char *end;
    errno = 0;
    value = strtoll(node->text, &end, 10);
    good = !*end && !errno;
  }
  if (!good) {
    ad_reading_must_be(r, node, path, "a whole number");
    return 0;
  }
  if (!within(r, key, node, path, (double)value)) return 0;
  *(int64_t *)out = value;
  return 1;
}

static int read_count(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  int64_t value;
  if (!read_integer(r, key, node, path, &value)) return 0;
  *(int *)out = (int)value;
  return 1;
}

static int read_number(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  double value = 0;
  if (key->word && node->kind == AD_NODE_SCALAR && !strcmp(node->text, key->word)) {
    *(double *)out = 0;
    return 1;
  }
  int good = node->kind == AD_NODE_SCALAR && node->plain && is_number(node->text, 1);
  if (good) {
    char *end;
    value = strtod(node->text, &end);
    good = !*end && isfinite(value);
  }
  if (!good) {
    char what[WORDS_SIZE];
    snprintf(what, sizeof what, "a number%s%s", key->word ? " or " : "", key->word ? key->word : "");
    ad_reading_must_be(r, node, path, what);
    return 0;
  }
  if (!within(r, key, node, path, value)) return 0;
  *(double *)out = value;
  return 1;
}

/* Writes "none, qkv or all" and returns buffer. */
static const char *list_words(const char *const *words, char *buffer, size_t size) {
  ad_text text = ad_text_on(buffer, size);
  for (size_t i = 0; words[i]; i++) ad_text_add(&text, "%s%s", !i ? "" : words[i + 1] ? ", " : " or ", words[i]);
  return buffer;
}

static int read_word(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  char choices[WORDS_SIZE], words[WORDS_SIZE];
  int number = node->kind == AD_NODE_SCALAR ? ad_key_word(key, node->text) : -1;
  if (number < 0)
    ad_recipe_errors_add(&r->errors, node->place, path, "must be %s, but is %s (%s)",
                         list_words(key->words, choices, sizeof choices), words_of(node, words, sizeof words),
                         key->help);
  else
    *(int *)out = number;
  return number >= 0;
}

static int read_boolean(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  if (key->words) return read_word(r, key, node, path, out);
  int plain = node->kind == AD_NODE_SCALAR && node->plain;
  int yes = plain && !strcmp(node->text, "true");
  if (!yes && !(plain && !strcmp(node->text, "false"))) {
    ad_reading_must_be(r, node, path, "true or false");
    return 0;
  }
  *(int *)out = yes;
  return 1;
}

/* Adds an error about an empty text in quotes. */
static void report_empty(ad_reading *r, const ad_key *key, const ad_node *node, const char *path) {
  char help[256];
  ad_recipe_errors_add(&r->errors, node->place, path, "is empty; write a value (%s)",
                       ad_key_help(key, help, sizeof help));
}

static int read_text(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  if (node->kind == AD_NODE_SCALAR && !node->plain && !*node->text) {
    report_empty(r, key, node, path);
    return 0;
  }
  if (node->kind != AD_NODE_SCALAR || !*node->text) {
    ad_reading_must_be(r, node, path, "a text");
    return 0;
  }
  char **text = out;
  if (ad_copy_string(node->text, text)) {
    r->errors.status = AD_MEMORY;
    return 0;
  }
  return 1;
}

static int takes_dtype(const ad_key *key, ad_dtype dtype) {
  return ad_dtype_is_float(dtype) && (!key->dtypes || key->dtypes & AD_DTYPE_BIT(dtype));
}

/* Writes the dtypes that this key accepts, and the word that means 0 ("auto, f64 or f32"). Returns buffer. */
static const char *dtypes_of(const ad_key *key, const char *word, char *buffer, size_t size) {
  ad_text choices = ad_text_on(buffer, size);
  int left = 0;
  for (int dtype = AD_F64; dtype < AD_DTYPE_END; dtype++) left += takes_dtype(key, (ad_dtype)dtype);
  if (word) ad_text_add(&choices, "%s, ", word);
  if (key->kind == AD_KEY_GRADIENT) ad_text_add(&choices, "raw, ");
  for (int dtype = AD_F64; left; dtype++)
    if (takes_dtype(key, (ad_dtype)dtype))
      ad_text_add(&choices, "%s%s", ad_dtype_name((ad_dtype)dtype), --left > 1 ? ", " : left ? " or " : "");
  return buffer;
}

/* Reads a floating dtype, or the word that means 0. An override has no such word: if it leaves a dtype out, that of
 * `precision` is used. */
static int read_dtype(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, const char *word,
                      void *out) {
  ad_dtype dtype = 0;
  const char *text = node->kind == AD_NODE_SCALAR ? node->text : "";
  if (!(word && !strcmp(text, word)) && (ad_dtype_parse(text, &dtype) || !takes_dtype(key, dtype))) {
    char what[WORDS_SIZE];
    ad_reading_must_be(r, node, path, dtypes_of(key, word, what, sizeof what));
    return 0;
  }
  *(ad_dtype *)out = dtype;
  return 1;
}

int ad_reading_gradient(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, const char *word,
                        void *out, int *raw) {
  *raw = node->kind == AD_NODE_SCALAR && !strcmp(node->text, "raw");
  return *raw || read_dtype(r, key, node, path, word, out);
}

static int read_sync(ad_reading *r, const ad_node *node, const char *path, void *out) {
  for (int sync = 0; node->kind == AD_NODE_SCALAR && sync < AD_SYNC_COUNT; sync++) {
    if (strcmp(node->text, ad_sync_names[sync]) != 0) continue;
    *(ad_sync *)out = (ad_sync)sync;
    return 1;
  }
  ad_reading_must_be(r, node, path, "none, shard or all");
  return 0;
}

int ad_reading_value(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, void *out) {
  switch (key->kind) {
    case AD_KEY_INTEGER:
      return read_integer(r, key, node, path, out);
    case AD_KEY_COUNT:
      return read_count(r, key, node, path, out);
    case AD_KEY_NUMBER:
      return read_number(r, key, node, path, out);
    case AD_KEY_BOOLEAN:
      return read_boolean(r, key, node, path, out);
    case AD_KEY_TEXT:
    case AD_KEY_VIEW:
      return read_text(r, key, node, path, out);
    case AD_KEY_DTYPE:
      return read_dtype(r, key, node, path, key->word, out);
    case AD_KEY_SYNC:
      return read_sync(r, node, path, out);
    default:
      return 0;
  }
}

/* ---- reading lists ---- */

/* Reads the elements of a list where the list stores them, so that after an error the list owns all texts that were
 * copied. */
static int read_elements(ad_reading *r, const ad_key *key, const ad_node *first, const char *path, char *elements,
                         size_t count) {
  int good = 1;
  size_t i = 0;
  for (const ad_node *node = first; i < count; node = node->next, i++)
    good &= ad_reading_value(r, key, node, path, elements + i * ad_key_value_size(key));
  return good;
}

ad_status ad_reading_list(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, char *base,
                          int *good) {
  size_t count = node->kind == AD_NODE_LIST ? ad_node_child_count(node) : 1;
  const ad_node *first = node->kind == AD_NODE_LIST ? node->children : node;
  if (node->kind == AD_NODE_MAP) {
    ad_reading_must_be(r, node, path, "a list");
    *good = 0;
    return AD_OK;
  }
  if (!count) {
    if (!key->fallback)
      ad_recipe_errors_add(&r->errors, node->place, path, "is an empty list; write at least one value (%s)", key->help);
    *good = key->fallback != NULL;
    return AD_OK;
  }
  void *elements;
  AD_TRY(ad_new_bytes(count, ad_key_value_size(key), &elements));
  memcpy(base + key->offset, &elements, sizeof elements);
  *(size_t *)(base + key->second) = count;
  *good = read_elements(r, key, first, path, elements, count);
  if (!*good) ad_key_release(key, base);
  return AD_OK;
}

/* ---- where keys are given ---- */

const ad_node *ad_reading_find(const ad_node *root, const char *path) {
  const char *dot = strchr(path, '.');
  if (!dot) return ad_node_find(root, path);
  char section[PATH_SIZE];
  ad_text text = ad_text_on(section, sizeof section);
  ad_text_add(&text, "%.*s", (int)(dot - path), path);
  const ad_node *below = ad_node_find(root, section);
  return below ? ad_reading_find(below, dot + 1) : NULL;
}

ad_recipe_place ad_reading_place(const ad_reading *reading, const char *path) {
  const ad_node *node = ad_reading_find(reading->root, path);
  if (node) return node->place;
  char section[PATH_SIZE];
  ad_text text = ad_text_on(section, sizeof section);
  ad_text_add(&text, "%.*s", (int)strcspn(path, "."), path);
  node = ad_node_find(reading->root, section);
  ad_recipe_place nowhere = reading->root->place;
  nowhere.line = 0;
  return node ? node->place : nowhere;
}

ad_recipe_place ad_reading_element_place(const ad_reading *reading, const char *path, size_t index) {
  const ad_node *node = ad_reading_find(reading->root, path);
  const ad_node *element = node ? node->children : NULL;
  while (element && index--) element = element->next;
  return element ? element->place : ad_reading_place(reading, path);
}
