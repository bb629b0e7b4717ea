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

enum { PATH_SIZE = 256 };

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
  if (key->kind == AD_KEY_GRADIENT) return ad_reading_gradient(r, key, node, path, NULL, out, &policy->raw);
  ad_key wordless = *key;  // an override gives a dtype, and no word that stands for another
  wordless.word = NULL;
  return ad_reading_value(r, &wordless, node, path, out);
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
    *good = ad_reading_gradient(r, key, node, key->path, key->word, base + key->offset, (int *)(base + key->second));
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
  if (!length) return ad_reading_find(r->root, path);
  ad_text_add(&text, "%.*s", (int)length, path);
  return ad_reading_find(r->root, list);
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
