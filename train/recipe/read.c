/* Reads the tree of nodes into the structs of the recipe and of its program, key by key of the schema. check.c checks
 * keys that depend on each other. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "program/keys.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "recipe/shard_groups.h"
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

static int read_gradient(ad_reading *r, const ad_key *key, const ad_node *node, const char *path, const char *word,
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

/* ---- reporting unknown keys ---- */

static int some_kind_has(const char *path) {
  for (const ad_program_kind *const *kind = ad_program_kinds(); *kind; kind++)
    for (size_t i = 0; i < (*kind)->key_count; i++)
      if (!strcmp((*kind)->keys[i].path, path)) return 1;
  return 0;
}

int ad_reading_may_be_known(const ad_reading *r, const char *section, const char *path, int has_near_name) {
  if (r->schema.program) return 0;
  return some_kind_has(path) || (!has_near_name && (!*section || !strcmp(section, "model")));
}

static void report_unknown(ad_reading *r, const ad_node *node, const char *section, const char *path) {
  char hint[512];
  ad_text text = ad_text_on(hint, sizeof hint);
  int near = ad_schema_suggest(&r->schema, section, node->key, &text);
  if (!ad_reading_may_be_known(r, section, path, near))
    ad_recipe_errors_add(&r->errors, node->place, path, "is an unknown key; %s", hint);
}

static void report_unknown_in(ad_reading *r, const ad_node *map, const char *section);

/* Adds errors about unknown keys in the maps of a list. */
static void report_unknown_in_list(ad_reading *r, const ad_node *list, const char *path) {
  char section[PATH_SIZE];
  ad_text text = ad_text_on(section, sizeof section);
  ad_text_add(&text, "%s[]", path);
  if (list->kind != AD_NODE_LIST) {
    ad_reading_must_be(r, list, path, "a list of mappings, such as [{...}, {...}]");
    return;
  }
  for (const ad_node *node = list->children; node; node = node->next) {
    if (node->kind == AD_NODE_MAP)
      report_unknown_in(r, node, section);
    else
      ad_reading_must_be(r, node, path, "a list of mappings");
  }
}

/* Judges a key by the schema: a known key is read later, a section or a list of maps is searched for unknown keys, and
 * any other key is an error. */
static void judge_key(ad_reading *r, const ad_node *node, const char *section) {
  char path[PATH_SIZE];
  ad_text text = ad_text_on(path, sizeof path);
  ad_text_add(&text, "%s", section);
  ad_path_add(&text, node->key);
  if (ad_schema_find(&r->schema, path)) return;
  if (ad_schema_is_list(&r->schema, path))
    report_unknown_in_list(r, node, path);
  else if (!ad_schema_is_section(&r->schema, path))
    report_unknown(r, node, section, path);
  else if (node->kind == AD_NODE_MAP)
    report_unknown_in(r, node, path);
  else if (!ad_node_is_empty(node))
    ad_reading_must_be(r, node, path, "a mapping of keys to values");
}

static void report_unknown_in(ad_reading *r, const ad_node *map, const char *section) {
  for (const ad_node *node = map->children; node; node = node->next) judge_key(r, node, section);
}

/* ---- reading overrides from the command line ---- */

static void override_path(const char *pattern, const char *name, char *buffer) {
  ad_text text = ad_text_on(buffer, PATH_SIZE);
  ad_text_add(&text, "precision.overrides");
  ad_path_add(&text, pattern);
  if (name) ad_path_add(&text, name);
}

/* Returns the key of `precision` that has this name in an override, or NULL if there is none. */
static const ad_key *policy_key(const ad_reading *r, const char *name) {
  char path[PATH_SIZE];
  ad_text text = ad_text_on(path, sizeof path);
  ad_text_add(&text, "precision");
  ad_path_add(&text, name);
  const ad_schema_entry *entry = ad_schema_find(&r->schema, path);
  return entry && ad_key_is_precision_policy(entry) ? &entry->key : NULL;
}

/* Reads one key of an override into the override's precision policy. */
static int read_override_value(ad_reading *r, const ad_node *node, const char *pattern, ad_precision_policy *policy) {
  char path[PATH_SIZE];
  override_path(pattern, node->key, path);
  const ad_key *key = policy_key(r, node->key);
  if (!key) {
    ad_recipe_errors_add(&r->errors, node->place, path,
                         "is an unknown key; an override may have the keys param, grad, reduce and accumulate");
    return 0;
  }
  char *out = (char *)policy + (key->offset - offsetof(ad_recipe, precision.policy));
  if (key->kind == AD_KEY_GRADIENT) return read_gradient(r, key, node, path, NULL, out, &policy->raw);
  return read_dtype(r, key, node, path, NULL, out);
}

/* Reads an override: its pattern, and the precision policy of parameters that match the pattern. */
static int read_override(ad_reading *r, const ad_node *node, ad_recipe_override *out) {
  char path[PATH_SIZE];
  override_path(node->key, NULL, path);
  if (ad_copy_string(node->key, &out->pattern)) {
    r->errors.status = AD_MEMORY;
    return 0;
  }
  if (node->kind != AD_NODE_MAP) {
    ad_reading_must_be(r, node, path, "a mapping such as {param: f32}");
    return 0;
  }
  int good = 1;
  for (const ad_node *value = node->children; value; value = value->next)
    good &= read_override_value(r, value, node->key, &out->policy);
  return good;
}

static ad_status read_overrides(ad_reading *r, const ad_node *node, int *good) {
  *good = ad_node_is_empty(node) || node->kind == AD_NODE_MAP;
  if (!*good)
    ad_reading_must_be(r, node, "precision.overrides",
                       "a mapping from patterns to precision policies, such as {\"*.norm.*\": {param: f32}}");
  size_t count = *good ? ad_node_child_count(node) : 0, i = 0;
  if (!count) return AD_OK;
  AD_TRY(ad_new(count, &r->recipe->precision.overrides));
  r->recipe->precision.override_count = count;
  for (const ad_node *child = node->children; child; child = child->next, i++)
    *good &= read_override(r, child, &r->recipe->precision.overrides[i]);
  return AD_OK;
}

/* ---- reading lists of maps ---- */

static int read_from_map(ad_reading *r, const ad_key *key, const ad_node *map, void *out) {
  const ad_node *node = ad_node_find(map, ad_key_name(key));
  if (node) return ad_reading_value(r, key, node, key->path, out);
  ad_recipe_errors_add(&r->errors, map->place, key->path, "is missing; add this key (%s)", key->help);
  return 0;
}

/* Reads one key of all maps in a list, as a list of values. If the node is no list of maps, an error was added
 * before. */
static ad_status read_column(ad_reading *r, const ad_key *key, const ad_node *list, char *base, int *good) {
  size_t count = list->kind == AD_NODE_LIST ? ad_node_child_count(list) : 0, i = 0;
  *good = count > 0;
  for (const ad_node *map = list->children; *good && map; map = map->next) *good &= map->kind == AD_NODE_MAP;
  if (!*good) return AD_OK;
  void *elements;
  AD_TRY(ad_new_bytes(count, ad_key_value_size(key), &elements));
  memcpy(base + key->offset, &elements, sizeof elements);
  *(size_t *)(base + key->second) = count;
  for (const ad_node *map = list->children; map; map = map->next, i++)
    *good &= read_from_map(r, key, map, (char *)elements + i * ad_key_value_size(key));
  if (!*good) ad_key_release(key, base);
  return AD_OK;
}

/* ---- reading all keys ---- */

static const ad_node *find_node(const ad_node *root, const char *path) {
  const char *dot = strchr(path, '.');
  if (!dot) return ad_node_find(root, path);
  char section[PATH_SIZE];
  ad_text text = ad_text_on(section, sizeof section);
  ad_text_add(&text, "%.*s", (int)(dot - path), path);
  const ad_node *below = ad_node_find(root, section);
  return below ? find_node(below, dot + 1) : NULL;
}

ad_recipe_place ad_reading_place(const ad_reading *reading, const char *path) {
  const ad_node *node = find_node(reading->root, path);
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
  const ad_node *node = find_node(reading->root, path);
  const ad_node *element = node ? node->children : NULL;
  while (element && index--) element = element->next;
  return element ? element->place : ad_reading_place(reading, path);
}

/* Reads the value of a key from its node into the recipe. Sets *good to 1 if that succeeds. */
static ad_status read_key(ad_reading *r, const ad_schema_entry *entry, const ad_node *node, int *good) {
  const ad_key *key = &entry->key;
  char *base = ad_schema_base(entry, r->recipe);
  if (key->kind == AD_KEY_OVERRIDES) return read_overrides(r, node, good);
  if (key->kind == AD_KEY_GROUPS) return ad_groups_read(r, node, good);
  if (key->kind == AD_KEY_SHARD_GROUPS) return ad_shard_groups_read(r, node, good);
  if (ad_schema_list_length(key->path)) return read_column(r, key, node, base, good);
  if (key->list) return ad_reading_list(r, key, node, key->path, base, good);
  if (key->kind == AD_KEY_GRADIENT)
    *good = read_gradient(r, key, node, key->path, key->word, base + key->offset, (int *)(base + key->second));
  else
    *good = ad_reading_value(r, key, node, key->path, base + key->offset);
  return AD_OK;
}

/* Returns 1 if the key's section is no map. This is already an error, so the key is not reported as missing. */
static int section_is_wrong(const ad_reading *r, const ad_key *key) {
  char section[PATH_SIZE];
  ad_text text = ad_text_on(section, sizeof section);
  ad_text_add(&text, "%.*s", (int)strcspn(key->path, "."), key->path);
  const ad_node *node = ad_node_find(r->root, section);
  return node && strchr(key->path, '.') && node->kind != AD_NODE_MAP && !ad_node_is_empty(node);
}

static void report_missing(ad_reading *r, const ad_key *key) {
  char help[256];
  if (!section_is_wrong(r, key))
    ad_recipe_errors_add(&r->errors, ad_reading_place(r, key->path), key->path, "is missing; add this key (%s)",
                         ad_key_help(key, help, sizeof help));
}

/* Returns 1 if several meshes are given but the program is not known, so that the meshes' names cannot be judged. */
static int cannot_be_judged(const ad_reading *r, const ad_schema_entry *entry, const ad_node *node) {
  return !r->schema.program && entry->home == AD_HOME_MESHES && node && node->kind == AD_NODE_MAP;
}

/* Reads a key's node or, if it has none, its default. Adds an error if the key has neither. */
static ad_status fill_key(ad_reading *r, const ad_schema_entry *entry, const ad_node *node, int *good) {
  const ad_key *key = &entry->key;
  *good = !cannot_be_judged(r, entry, node);
  if (!*good) return AD_OK;
  if (node) return read_key(r, entry, node, good);
  if (!key->fallback) {
    *good = 0;
    report_missing(r, key);
    return AD_OK;
  }
  if (!*key->fallback) return AD_OK;
  char fallback[64];
  ad_text text = ad_text_on(fallback, sizeof fallback);
  ad_text_add(&text, "%s", key->fallback);
  ad_node written = {.kind = AD_NODE_SCALAR, .plain = 1, .text = fallback, .place = r->root->place};
  return read_key(r, entry, &written, good);
}

/* Allocates the options and the meshes of the recipe. */
static ad_status make_room(ad_reading *r) {
  ad_recipe *recipe = r->recipe;
  const ad_program_kind *program = recipe->program;
  AD_TRY(ad_new(r->schema.count, &r->nodes));
  AD_TRY(ad_new(r->schema.count, &r->wrong));
  if (program) AD_TRY(ad_new_bytes(1, program->options_size, &recipe->options));
  size_t count = ad_schema_mesh_count(program);
  AD_TRY(ad_new(count, &recipe->meshes));
  recipe->mesh_count = count;
  for (size_t i = 0; program && count > 1 && i < count; i++)
    AD_TRY(ad_copy_string(ad_program_kind_modules(program)[i], &recipe->meshes[i].module));
  return AD_OK;
}

/* Returns the node of a key; for a key in a list of maps, the node of the list. */
static const ad_node *node_of(const ad_reading *r, const char *path) {
  char list[PATH_SIZE];
  ad_text text = ad_text_on(list, sizeof list);
  size_t length = ad_schema_list_length(path);
  if (!length) return find_node(r->root, path);
  ad_text_add(&text, "%.*s", (int)length, path);
  return find_node(r->root, list);
}

ad_status ad_reading_fill(ad_reading *r) {
  AD_TRY(make_room(r));
  report_unknown_in(r, r->root, "");
  for (size_t i = 0; i < r->schema.count; i++) {
    int good;
    r->nodes[i] = node_of(r, r->schema.entries[i].key.path);
    AD_TRY(fill_key(r, &r->schema.entries[i], r->nodes[i], &good));
    r->wrong[i] = !good;
  }
  return AD_OK;
}
