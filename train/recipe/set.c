/* --set PATH=VALUE: puts a value from the command line into the tree, in place of the node at that path. */
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "recipe/reading.h"

enum { PARTS_MAX = 4, PART_SIZE = 128, PATH_SIZE = 256 };

/* The parts of a path such as train.steps or precision.overrides."*.norm.*".param. */
typedef struct set_path {
  char part[PARTS_MAX][PART_SIZE];
  int count;
} set_path;

/* Reads one part of a path, up to a dot or the end. Returns the text after this part, or NULL if the part is too long
 * or a quote is not closed. */
static const char *take_part(const char *text, const char *end, char out[PART_SIZE]) {
  int quoted = text < end && *text == '"';
  const char *first = text + quoted;
  const char *last = memchr(first, quoted ? '"' : '.', (size_t)(end - first));
  if (!last && quoted) return NULL;
  if (!last) last = end;
  if ((size_t)(last - first) >= PART_SIZE) return NULL;
  memcpy(out, first, (size_t)(last - first));
  out[last - first] = 0;
  return last + quoted;
}

static int take_path(const char *text, const char *end, set_path *out) {
  for (out->count = 0; out->count < PARTS_MAX;) {
    text = take_part(text, end, out->part[out->count]);
    if (!text || !*out->part[out->count++]) return 0;
    if (text == end) return 1;
    if (*text++ != '.') return 0;
  }
  return 0;
}

/* Returns 1 if the first `count` parts are a path of the schema, or if that path is below precision.overrides. */
static int is_known(const ad_reading *r, const set_path *path, int count) {
  char joined[PATH_SIZE];
  ad_text text = ad_text_on(joined, sizeof joined);
  for (int i = 0; i < count; i++) ad_path_add(&text, path->part[i]);
  if (ad_schema_find(&r->schema, joined) || ad_schema_is_list(&r->schema, joined)) return 1;
  text = ad_text_on(joined, sizeof joined);
  for (int i = 0; i < count && i < 2; i++) ad_path_add(&text, path->part[i]);
  const ad_schema_entry *entry = ad_schema_find(&r->schema, joined);
  if (!entry) return count <= 2 && ad_schema_is_section(&r->schema, joined);
  return count <= 2 || entry->key.kind == AD_KEY_OVERRIDES;
}

/* Adds an error about a path that is not in the schema. Its hint lists names below the last part that is known. */
static void report_unknown(ad_reading *r, ad_recipe_place place, const set_path *path) {
  char hint[512], whole[PATH_SIZE], section[PATH_SIZE] = "";
  ad_text text = ad_text_on(hint, sizeof hint), joined = ad_text_on(whole, sizeof whole),
          above = ad_text_on(section, sizeof section);
  int known = path->count - 1, near = 1;
  while (known && !is_known(r, path, known)) known--;
  for (int i = 0; i < path->count; i++) ad_path_add(&joined, path->part[i]);
  for (int i = 0; i < known; i++) ad_path_add(&above, path->part[i]);
  if (known && !ad_schema_is_section(&r->schema, section))
    ad_text_add(&text, "`%s` has no keys below it", section);
  else
    near = ad_schema_suggest(&r->schema, section, path->part[known], &text);
  if (ad_reading_may_be_known(r, section, whole, near)) return;
  ad_recipe_errors_add(&r->errors, place, "", "is an unknown key; %s", hint);
}

/* Sets *out to the map at `key`, which is made if the key has no value. Sets *out to NULL if the key has another value;
 * the reader adds an error about that. */
static ad_status map_under(ad_node *map, const char *key, ad_recipe_place place, ad_node **out) {
  ad_node *child = ad_node_find(map, key);
  *out = NULL;
  if (child && !ad_node_is_empty(child)) {
    *out = child->kind == AD_NODE_MAP ? child : NULL;
    return AD_OK;
  }
  AD_TRY(ad_node_new_map(place, &child));
  ad_status status = ad_node_put(map, key, child);
  if (status)
    ad_node_destroy(child);
  else
    *out = child;
  return status;
}

/* Puts a value into the tree. Sets *taken to 1 if the tree owns the value afterwards. */
static ad_status put_in_tree(ad_reading *r, const set_path *path, ad_recipe_place place, ad_node *value, int *taken) {
  ad_node *map = r->root;
  for (int i = 0; map && i + 1 < path->count; i++) AD_TRY(map_under(map, path->part[i], place, &map));
  if (!map) {
    ad_recipe_errors_add(&r->errors, place, "", "cannot be set: the value above it is not a mapping of keys");
    return AD_OK;
  }
  AD_TRY(ad_node_put(map, path->part[path->count - 1], value));
  *taken = 1;
  return AD_OK;
}

/* Returns the first '=' that is not in quotes. */
static const char *equals_sign(const char *set) {
  int quoted = 0;
  for (; *set && (quoted || *set != '='); set++) quoted ^= *set == '"';
  return *set ? set : NULL;
}

static ad_status put_value(ad_reading *r, const set_path *path, ad_recipe_place place, const char *text) {
  ad_node *value;
  int taken = 0;
  AD_TRY(ad_document_parse(text, strlen(text), place, &r->errors, &value));
  ad_status status = value ? put_in_tree(r, path, place, value, &taken) : AD_OK;
  if (!taken) ad_node_destroy(value);
  return status;
}

/* Returns 1 if the path is model, model.kind or model.from, the paths that may decide the program. */
static int names_kind(const set_path *path) {
  const char *key = path->count == 2 ? path->part[1] : "kind";
  return !strcmp(path->part[0], "model") && path->count <= 2 && (!strcmp(key, "kind") || !strcmp(key, "from"));
}

ad_status ad_reading_set_kind(ad_reading *r, const char *set, const char *origin, int order) {
  set_path path;
  const char *equals = equals_sign(set);
  if (!equals || !take_path(set, equals, &path) || !names_kind(&path)) return AD_OK;
  return put_value(r, &path, (ad_recipe_place){origin, order, 0}, equals + 1);
}

ad_status ad_reading_set(ad_reading *r, const char *set, const char *origin, int order) {
  ad_recipe_place place = {origin, order, 0};
  set_path path;
  const char *equals = equals_sign(set);
  if (!equals || !take_path(set, equals, &path)) {
    ad_recipe_errors_add(&r->errors, place, "",
                         "must be PATH=VALUE, such as train.steps=100; put a key that contains dots in double quotes");
    return AD_OK;
  }
  if (is_known(r, &path, path.count)) return put_value(r, &path, place, equals + 1);
  report_unknown(r, place, &path);
  return AD_OK;
}
