/* Reads lists of maps with patterns of parameter names. */
#include "recipe/entries.h"

#include <string.h>
#include "base/memory.h"
#include "base/nearest.h"
#include "program/program.h"

const char *ad_entry_path(const ad_entry_kind *kind, size_t index, const char *name, char buffer[AD_ENTRY_PATH_SIZE]) {
  ad_text text = ad_text_on(buffer, AD_ENTRY_PATH_SIZE);
  ad_text_add(&text, "%s[%zu]%s%.60s", kind->path, index, name ? "." : "", name ? name : "");
  return buffer;
}

int ad_entry_gives(const ad_entry_kind *kind, const void *entry, size_t key) {
  return !kind->flags[key] || ((const ad_entry *)entry)->gives & kind->flags[key];
}

static void report_unknown(ad_reading *r, const ad_entry_kind *kind, const ad_node *node, const char *path) {
  const char *nearest = NULL;
  int best = ad_name_distance_max(node->key) + 1;
  for (size_t k = 0; k < kind->key_count; k++) {
    int distance = ad_name_distance(kind->keys[k].path, node->key);
    if (distance >= best) continue;
    best = distance;
    nearest = kind->keys[k].path;
  }
  if (nearest)
    ad_recipe_errors_add(&r->errors, node->place, path,
                         "is an unknown key; did you mean %s? The keys of a group are %s", nearest, kind->names);
  else
    ad_recipe_errors_add(&r->errors, node->place, path, "is an unknown key; the keys of a group are %s", kind->names);
}

static ad_status read_key(ad_reading *r, const ad_entry_kind *kind, const ad_node *node, size_t index, void *out,
                          int *good) {
  char path[AD_ENTRY_PATH_SIZE];
  ad_entry_path(kind, index, node->key, path);
  size_t k = 0;
  while (k < kind->key_count && strcmp(kind->keys[k].path, node->key) != 0) k++;
  if (k == kind->key_count) {
    report_unknown(r, kind, node, path);
    *good = 0;
    return AD_OK;
  }
  const ad_key *key = &kind->keys[k];
  int read = 1;
  ((ad_entry *)out)->gives |= kind->flags[k];
  if (key->list)
    AD_TRY(ad_reading_list(r, key, node, path, out, &read));
  else
    read = ad_reading_value(r, key, node, path, (char *)out + key->offset);
  *good &= read;
  return AD_OK;
}

static ad_status read_entry(ad_reading *r, const ad_entry_kind *kind, const ad_node *map, size_t index, void *out,
                            int *good) {
  char path[AD_ENTRY_PATH_SIZE], what[128];
  ad_text text = ad_text_on(what, sizeof what);
  ad_text_add(&text, "a mapping such as %s", kind->example);
  int is_good = map->kind == AD_NODE_MAP;
  if (!is_good) ad_reading_must_be(r, map, ad_entry_path(kind, index, NULL, path), what);
  for (const ad_node *node = is_good ? map->children : NULL; node; node = node->next)
    AD_TRY(read_key(r, kind, node, index, out, &is_good));
  if (is_good && !((const ad_entry *)out)->pattern) {
    ad_recipe_errors_add(&r->errors, map->place, ad_entry_path(kind, index, kind->keys[0].path, path),
                         "is missing; add this key (%s)", kind->keys[0].help);
    is_good = 0;
  }
  *good &= is_good;
  return AD_OK;
}

static void refuse_list(ad_reading *r, const ad_entry_kind *kind, const ad_node *node, size_t count) {
  char what[128];
  ad_text text = ad_text_on(what, sizeof what);
  ad_text_add(&text, "a list of mappings, such as [%s]", kind->example);
  if (count)
    ad_recipe_errors_add(&r->errors, node->place, kind->path, "has %zu entries, but must have at most %zu", count,
                         kind->most);
  else
    ad_reading_must_be(r, node, kind->path, what);
}

ad_status ad_entries_read(ad_reading *r, const ad_entry_kind *kind, const ad_node *node, void **list, size_t *count,
                          int *good) {
  size_t given = node->kind == AD_NODE_LIST ? ad_node_child_count(node) : 0, i = 0;
  *good = ad_node_is_empty(node) || (node->kind == AD_NODE_LIST && given <= kind->most);
  if (!*good) refuse_list(r, kind, node, given);
  if (!*good || !given) return AD_OK;
  AD_TRY(ad_new_bytes(given, kind->size, list));
  *count = given;
  for (const ad_node *child = node->children; child; child = child->next, i++)
    AD_TRY(read_entry(r, kind, child, i, (char *)*list + i * kind->size, good));
  return AD_OK;
}

/* ---- entries that give nothing ---- */

/* Returns 1 if an entry excepts parameters from a later one: it has a parameter that a later pattern matches too. An
 * entry without parameters also counts, since its pattern is reported. */
static int excepts(const ad_program *program, ad_patterns patterns, size_t index) {
  const ad_patterns later = {(const char *)patterns.first + (index + 1) * patterns.stride, patterns.stride,
                             patterns.count - index - 1};
  char name[AD_PROGRAM_NAME_SIZE];
  size_t own = 0;
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    for (size_t i = 0; i < ad_program_module(program, m)->param_count; i++) {
      ad_program_param_name(program, m, i, name, sizeof name);
      if (ad_pattern_first(patterns, name) != index) continue;
      if (ad_pattern_first(later, name) < later.count) return 1;
      own++;
    }
  return !own;
}

void ad_entries_check_gives(ad_reading *r, const ad_program *program, const ad_entry_kind *kind, ad_patterns patterns,
                            const char *names) {
  char path[AD_ENTRY_PATH_SIZE];
  for (size_t i = 0; i < patterns.count; i++) {
    const ad_entry *entry = (const ad_entry *)(const void *)((const char *)patterns.first + i * patterns.stride);
    if (entry->gives || excepts(program, patterns, i)) continue;
    ad_recipe_errors_add(&r->errors, ad_reading_element_place(r, kind->path, i), ad_entry_path(kind, i, NULL, path),
                         "gives nothing, and no later group has a pattern from which it would except parameters; set "
                         "%s",
                         names);
  }
}
