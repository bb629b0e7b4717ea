/* Prints a recipe as YAML, every key of the schema with its value. libyaml decides about quotes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>
#include "base/error.h"
#include "base/memory.h"
#include "program/keys.h"
#include "base/locale.h"
#include "recipe/groups.h"
#include "recipe/shard_groups.h"
#include "recipe/schema.h"

#define LEFT_OUT "left out"

/* The state of printing. Nodes are libyaml's numbers. Node 0 means that memory ran out, and every function here returns
 * 0 if it is given node 0. */
typedef struct printer {
  yaml_document_t yaml;
  const ad_recipe *recipe;
  ad_schema schema;
  int in_one_line;
} printer;

static int add_scalar(printer *p, const char *text, int quoted) {
  yaml_scalar_style_t style = quoted ? YAML_DOUBLE_QUOTED_SCALAR_STYLE : YAML_PLAIN_SCALAR_STYLE;
  return yaml_document_add_scalar(&p->yaml, NULL, (const yaml_char_t *)text, (int)strlen(text), style);
}

static int add_map(printer *p, yaml_mapping_style_t style) { return yaml_document_add_mapping(&p->yaml, NULL, style); }

static int append_pair(printer *p, int map, int key, int value) {
  return map && key && value ? yaml_document_append_mapping_pair(&p->yaml, map, key, value) : 0;
}

/* Adds a number as the shortest decimal from which the same number is read. */
static int add_number(printer *p, double value) {
  char buffer[40];
  int whole = value == floor(value) && fabs(value) < 1e6;
  if (whole) snprintf(buffer, sizeof buffer, "%.0f", value);
  for (int digits = 1; !whole && digits <= 17; digits++) {
    snprintf(buffer, sizeof buffer, "%.*g", digits, value);
    if (strtod(buffer, NULL) == value) break;
  }
  return add_scalar(p, buffer, 0);
}

static int add_integer(printer *p, int64_t value) {
  char buffer[32];
  snprintf(buffer, sizeof buffer, "%lld", (long long)value);
  return add_scalar(p, buffer, 0);
}

static int add_dtype(printer *p, const ad_key *key, ad_dtype dtype, int raw) {
  return add_scalar(p, raw ? "raw" : dtype ? ad_dtype_name(dtype) : key->word, 0);
}

static int raw_of(const ad_key *key, const char *base) {
  return key->kind == AD_KEY_GRADIENT && *(const int *)(base + key->second);
}

/* Adds the value at `at`, which is an element of a list or a member of `base`. */
static int add_value(printer *p, const ad_key *key, const char *base, const void *at) {
  switch (key->kind) {
    case AD_KEY_INTEGER:
      return add_integer(p, *(const int64_t *)at);
    case AD_KEY_COUNT:
      return add_integer(p, *(const int *)at);
    case AD_KEY_NUMBER:
      return key->word && *(const double *)at == 0 ? add_scalar(p, key->word, 0) : add_number(p, *(const double *)at);
    case AD_KEY_BOOLEAN:
      return add_scalar(p, ad_key_word_of(key, *(const int *)at), 0);
    case AD_KEY_TEXT:
    case AD_KEY_VIEW:
      return add_scalar(p, *(char *const *)at, 1);
    case AD_KEY_SYNC:
      return add_scalar(p, ad_sync_names[*(const ad_sync *)at], 0);
    default:
      return add_dtype(p, key, *(const ad_dtype *)at, raw_of(key, base));
  }
}

static int add_list(printer *p, const ad_key *key, const char *base) {
  const char *elements = *(char *const *)(base + key->offset);
  size_t count = *(const size_t *)(base + key->second);
  int list = yaml_document_add_sequence(&p->yaml, NULL, YAML_FLOW_SEQUENCE_STYLE);
  for (size_t i = 0; list && i < count; i++) {
    int element = add_value(p, key, base, elements + i * ad_key_value_size(key));
    if (!element || !yaml_document_append_sequence_item(&p->yaml, list, element)) return 0;
  }
  return list;
}

static int add_plain(printer *p, const ad_key *key, const char *base) {
  return key->list ? add_list(p, key, base) : add_value(p, key, base, base + key->offset);
}

/* Adds a map with the keys that the override gives. */
static int add_override(printer *p, const ad_recipe_override *override) {
  const char *base = (const char *)&override->policy - offsetof(ad_recipe, precision.policy);
  int map = add_map(p, YAML_FLOW_MAPPING_STYLE);
  for (size_t i = 0; map && i < p->schema.count; i++) {
    const ad_key *key = &p->schema.entries[i].key;
    if (!ad_key_is_precision_policy(&p->schema.entries[i])) continue;
    ad_dtype dtype = *(const ad_dtype *)(base + key->offset);
    int raw = raw_of(key, base);
    if ((dtype || raw) && !append_pair(p, map, add_scalar(p, ad_key_name(key), 0), add_dtype(p, key, dtype, raw)))
      return 0;
  }
  return map;
}

static int add_overrides(printer *p) {
  int map = add_map(p, p->in_one_line ? YAML_FLOW_MAPPING_STYLE : YAML_BLOCK_MAPPING_STYLE);
  for (size_t i = 0; map && i < p->recipe->precision.override_count; i++) {
    const ad_recipe_override *override = &p->recipe->precision.overrides[i];
    if (!append_pair(p, map, add_scalar(p, override->pattern, 1), add_override(p, override))) return 0;
  }
  return map;
}

/* Adds a map with the keys that the entry gives. */
static int add_entry(printer *p, const ad_entry_kind *kind, const char *entry) {
  int map = add_map(p, YAML_FLOW_MAPPING_STYLE);
  for (size_t k = 0; map && k < kind->key_count; k++) {
    const ad_key *key = &kind->keys[k];
    if (ad_entry_gives(kind, entry, k) && !append_pair(p, map, add_scalar(p, key->path, 0), add_plain(p, key, entry)))
      return 0;
  }
  return map;
}

static int add_entries(printer *p, const ad_entry_kind *kind, const void *entries, size_t count) {
  int list =
      yaml_document_add_sequence(&p->yaml, NULL, p->in_one_line ? YAML_FLOW_SEQUENCE_STYLE : YAML_BLOCK_SEQUENCE_STYLE);
  for (size_t i = 0; list && i < count; i++) {
    int entry = add_entry(p, kind, (const char *)entries + i * kind->size);
    if (!entry || !yaml_document_append_sequence_item(&p->yaml, list, entry)) return 0;
  }
  return list;
}

/* Returns 1 if the key is a text that has neither a value nor a default. */
static int is_left_out(const ad_key *key, const char *base) {
  return ad_key_is_text(key) && !key->list && !*(char *const *)(base + key->offset);
}

static int add_key(printer *p, const ad_key *key, const char *base) {
  if (key->kind == AD_KEY_OVERRIDES) return add_overrides(p);
  if (key->kind == AD_KEY_GROUPS) return add_entries(p, &ad_group_entries, p->recipe->groups, p->recipe->group_count);
  if (key->kind == AD_KEY_SHARD_GROUPS)
    return add_entries(p, &ad_shard_group_entries, p->recipe->shard.groups, p->recipe->shard.group_count);
  return add_plain(p, key, base);
}

/* The sections that are open, each inside the one before. The keys of a section are consecutive in the schema. */
enum { DEPTH_MAX = 3 };
typedef struct sections {
  char name[DEPTH_MAX][64];
  int map[DEPTH_MAX];
  int depth;
} sections;

static int map_above(const sections *open, int root) { return open->depth ? open->map[open->depth - 1] : root; }

static int open_section(printer *p, const char *name, int root, sections *open) {
  int map = add_map(p, YAML_BLOCK_MAPPING_STYLE), above = map_above(open, root);
  snprintf(open->name[open->depth], sizeof open->name[0], "%s", name);
  open->map[open->depth++] = map;
  return append_pair(p, above, add_scalar(p, name, 0), map);
}

/* Returns the map for a key, and opens the key's sections if they are not open. */
static int section_of(printer *p, const ad_key *key, int root, sections *open) {
  const char *from = key->path;
  int depth = 0;
  for (const char *dot; (dot = strchr(from, '.')) && depth < DEPTH_MAX; from = dot + 1, depth++) {
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(dot - from), from);
    if (depth < open->depth && !strcmp(open->name[depth], name)) continue;
    open->depth = depth;
    if (!open_section(p, name, root, open)) return 0;
  }
  open->depth = depth;
  return map_above(open, root);
}

/* Returns the number of keys in each map of a list of maps. `first` is the index of the first of these keys; the others
 * follow it. */
static size_t keys_of_list(const printer *p, size_t first) {
  size_t length = ad_schema_list_length(p->schema.entries[first].key.path), count = 1;
  while (first + count < p->schema.count &&
         ad_schema_list_length(p->schema.entries[first + count].key.path) == length &&
         !strncmp(p->schema.entries[first].key.path, p->schema.entries[first + count].key.path, length))
    count++;
  return count;
}

/* Adds one map of a list of maps, made of element `element` of each key's list. */
static int add_map_of_list(printer *p, size_t first, size_t keys, size_t element) {
  int map = add_map(p, YAML_FLOW_MAPPING_STYLE);
  for (size_t i = first; map && i < first + keys; i++) {
    const ad_key *key = &p->schema.entries[i].key;
    const char *base = ad_schema_base(&p->schema.entries[i], p->recipe), *values = *(char *const *)(base + key->offset);
    if (!append_pair(p, map, add_scalar(p, ad_key_name(key), 0),
                     add_value(p, key, base, values + element * ad_key_value_size(key))))
      return 0;
  }
  return map;
}

/* Adds a list of maps. Its values are stored as one list for each key. */
static int add_maps(printer *p, size_t first, size_t keys) {
  const ad_key *key = &p->schema.entries[first].key;
  size_t count = *(const size_t *)(ad_schema_base(&p->schema.entries[first], p->recipe) + key->second);
  int list = yaml_document_add_sequence(&p->yaml, NULL, YAML_FLOW_SEQUENCE_STYLE);
  for (size_t i = 0; list && i < count; i++) {
    int map = add_map_of_list(p, first, keys, i);
    if (!map || !yaml_document_append_sequence_item(&p->yaml, list, map)) return 0;
  }
  return list;
}

static int build_list(printer *p, size_t first, size_t keys, int root) {
  char name[64];
  const char *path = p->schema.entries[first].key.path;
  snprintf(name, sizeof name, "%.*s", (int)ad_schema_list_length(path), path);
  return append_pair(p, root, add_scalar(p, name, 0), add_maps(p, first, keys));
}

/* Adds the complete recipe, every key in its section. */
static int build(printer *p) {
  sections open = {.depth = 0};
  int root = add_map(p, YAML_BLOCK_MAPPING_STYLE);
  for (size_t i = 0; i < p->schema.count; i++) {
    const ad_key *key = &p->schema.entries[i].key;
    const char *base = ad_schema_base(&p->schema.entries[i], p->recipe);
    if (ad_schema_list_length(key->path)) {
      size_t keys = keys_of_list(p, i);
      if (!build_list(p, i, keys, root)) return 0;
      i += keys - 1;
      continue;
    }
    if (is_left_out(key, base)) continue;
    int map = section_of(p, key, root, &open);
    if (!append_pair(p, map, add_scalar(p, ad_key_name(key), 0), add_key(p, key, base))) return 0;
  }
  return root;
}

/* ---- writing a YAML document as text ---- */

typedef struct output {
  char *text;
  size_t used, size;
} output;

static int write_bytes(void *context, unsigned char *bytes, size_t count) {
  output *out = context;
  size_t needed = out->used + count + 1;
  if (needed > out->size) {
    if (ad_grow(&out->text, out->size, 2 * needed)) return 0;
    out->size = 2 * needed;
  }
  memcpy(out->text + out->used, bytes, count);
  out->used += count;
  out->text[out->used] = 0;
  return 1;
}

/* Writes the document. yaml_emitter_dump takes ownership of the document's content, even if it fails. */
static int write_document(yaml_document_t *yaml, output *out) {
  yaml_emitter_t emitter;
  if (!yaml_emitter_initialize(&emitter)) {
    yaml_document_delete(yaml);
    return 0;
  }
  yaml_emitter_set_output(&emitter, write_bytes, out);
  yaml_emitter_set_unicode(&emitter, 1);
  yaml_emitter_set_width(&emitter, -1);
  int good = yaml_emitter_dump(&emitter, yaml) && yaml_emitter_flush(&emitter);
  yaml_emitter_delete(&emitter);
  return good;
}

/* ---- printing one key ---- */

static int print_key(printer *p, const ad_schema_entry *entry, output *out) {
  if (!yaml_document_initialize(&p->yaml, NULL, NULL, NULL, 1, 1)) return 0;
  if (add_key(p, &entry->key, ad_schema_base(entry, p->recipe))) return write_document(&p->yaml, out);
  yaml_document_delete(&p->yaml);
  return 0;
}

ad_status ad_recipe_print_key(const ad_recipe *recipe, const ad_schema *schema, const ad_schema_entry *entry,
                              char **out) {
  printer p = {.recipe = recipe, .schema = *schema, .in_one_line = 1};
  output text = {0};
  if (is_left_out(&entry->key, ad_schema_base(entry, recipe))) return ad_copy_string(LEFT_OUT, out);
  ad_locale before = ad_locale_enter();
  int good = print_key(&p, entry, &text);
  ad_locale_leave(before);
  if (!good) {
    ad_release(text.text);
    return ad_fail(AD_MEMORY, "no memory to print %s", entry->key.path);
  }
  // Removes the line of dots with which libyaml ends a document of a single value.
  text.text[strcspn(text.text, "\n")] = 0;
  *out = text.text;
  return AD_OK;
}

/* ---- comparing printed values ---- */

static int same_number(const char *a, const char *b) {
  ad_locale before = ad_locale_enter();
  int same = strtod(a, NULL) == strtod(b, NULL);
  ad_locale_leave(before);
  return same;
}

int ad_key_means(const ad_key *key, const char *written, const char *value) {
  if (key->kind == AD_KEY_NUMBER && !key->list) return same_number(written, value);
  if (key->words) return ad_key_word(key, written) == ad_key_word(key, value);
  return !strcmp(written, value);
}

int ad_key_is_default(const ad_key *key, const char *value) {
  if (!key->fallback) return 0;
  if (*key->fallback) return ad_key_means(key, key->fallback, value);
  return !strcmp(value, LEFT_OUT) || !strcmp(value, "[]") || !strcmp(value, "{}");
}

/* ---- printing all keys ---- */

static int print_yaml(printer *p, output *out) {
  if (!yaml_document_initialize(&p->yaml, NULL, NULL, NULL, 1, 1)) return 0;
  if (build(p)) return write_document(&p->yaml, out);
  yaml_document_delete(&p->yaml);
  return 0;
}

ad_status ad_recipe_print(const ad_recipe *recipe, char **out) {
  AD_NEED(recipe, out);
  printer p = {.recipe = recipe};
  output text = {0};
  AD_TRY(ad_schema_create(recipe->program, &p.schema));
  ad_locale before = ad_locale_enter();
  int good = print_yaml(&p, &text);
  ad_locale_leave(before);
  ad_schema_release(&p.schema);
  if (!good) {
    ad_release(text.text);
    return ad_fail(AD_MEMORY, "no memory to print the recipe %s", recipe->path);
  }
  *out = text.text;
  return AD_OK;
}
