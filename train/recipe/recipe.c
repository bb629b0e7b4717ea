/* Reads a recipe from its first byte to the struct: the order of the steps, and the memory that a recipe owns. */
#include "addend/recipe.h"

#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "base/locale.h"
#include "program/program.h"
#include "recipe/name.h"
#include "recipe/reading.h"
#include "recipe/recipe.h"

typedef struct source {
  const char *text, *path;
  size_t size;
  const char *const *sets;
  size_t set_count;
  int with_files;  /* 1: also check the files that the recipe names */
  int with_values; /* 1: also check the values in the files of model.from */
} source;

static void release_texts(char **texts, size_t count) {
  for (size_t i = 0; i < count; i++) ad_release(texts[i]);
  ad_release(texts);
}

void ad_recipe_destroy(ad_recipe *recipe) {
  if (!recipe) return;
  ad_schema_clear(recipe);
  release_texts(recipe->given, recipe->given_count);
  ad_release(recipe->options);
  ad_release(recipe->path);
  ad_release(recipe);
}

int ad_recipe_gives(const ad_recipe *recipe, const char *key) {
  for (size_t i = 0; i < recipe->given_count; i++)
    if (!strcmp(recipe->given[i], key)) return 1;
  return 0;
}

/* Gives a recipe that has no name the name of its file: "recipes/gpt-text.yaml" becomes gpt-text. */
static ad_status name_after_file(ad_recipe *recipe) {
  return recipe->name ? AD_OK : ad_name_of_file(recipe->path, &recipe->name);
}

/* Makes the origin for errors of a --set: "--set train.steps" for "train.steps=5". */
static ad_status origin_of_set(const char *set, char **out) {
  size_t size = strlen(set) + sizeof "--set ";
  AD_TRY(ad_new(size, out));
  int quoted = 0;
  const char *end = set;
  for (; *end && (quoted || *end != '='); end++) quoted ^= *end == '"';
  snprintf(*out, size, "--set %.*s", (int)(end - set), set);
  return AD_OK;
}

static ad_status apply_sets(ad_reading *r, const source *from, char *const *origins) {
  for (size_t i = 0; i < from->set_count; i++) AD_TRY(ad_reading_set(r, from->sets[i], origins[i], (int)i + 1));
  return AD_OK;
}

/* Applies only those --set options that name the program, because the keys of the others depend on the program. Errors
 * are dropped here: later all --set options are applied in their order, and then the errors are added. */
static ad_status apply_sets_of_kind(ad_reading *r, const source *from, char **origins) {
  ad_recipe_errors kept = r->errors;
  ad_status status = AD_OK;
  r->errors = (ad_recipe_errors){0};
  for (size_t i = 0; !status && i < from->set_count; i++) {
    status = origin_of_set(from->sets[i], &origins[i]);
    if (!status) status = ad_reading_set_kind(r, from->sets[i], origins[i], (int)i + 1);
  }
  ad_recipe_errors_clear(&r->errors);
  r->errors = kept;
  return status;
}

/* Finds the program that the recipe, --set or model.from names, and makes its schema. */
static ad_status find_program(ad_reading *r, const source *from, char **origins) {
  AD_TRY(apply_sets_of_kind(r, from, origins));
  if (from->with_files) AD_TRY(ad_reading_open_pretrained(r));
  const ad_node *kind = ad_node_find(ad_node_find(r->root, "model"), "kind");
  if (kind && kind->kind == AD_NODE_SCALAR) r->recipe->program = ad_program_kind_find(kind->text);
  return ad_schema_create(r->recipe->program, &r->schema);
}

/* Turns an empty recipe into an empty map, because --set may give all keys. */
static ad_status make_root_a_map(ad_reading *r) {
  if (r->root->kind == AD_NODE_MAP) return AD_OK;
  if (!ad_node_is_empty(r->root)) {
    ad_recipe_errors_add(&r->errors, r->root->place, "",
                         "a recipe must be a mapping of keys to values, such as \"name: gpt-text\"");
    return ad_recipe_errors_report(&r->errors);
  }
  ad_recipe_place place = r->root->place;
  ad_node_destroy(r->root);
  r->root = NULL;
  return ad_node_new_map(place, &r->root);
}

static ad_status list_given(const ad_reading *r) {
  ad_recipe *recipe = r->recipe;
  AD_TRY(ad_new(r->schema.count, &recipe->given));
  for (size_t i = 0; i < r->schema.count; i++) {
    if (!r->nodes[i]) continue;
    AD_TRY(ad_copy_string(r->schema.entries[i].key.path, &recipe->given[recipe->given_count]));
    recipe->given_count++;
  }
  return AD_OK;
}

/* Reads the tree, applies --set, and then fills, completes and checks the recipe. */
static ad_status read_tree(ad_reading *r, const source *from, char **origins) {
  AD_TRY(ad_document_parse(from->text, from->size, (ad_recipe_place){from->path, 0, 0}, &r->errors, &r->root));
  if (!r->root) return ad_recipe_errors_report(&r->errors);
  AD_TRY(make_root_a_map(r));
  AD_TRY(find_program(r, from, origins));
  AD_TRY(apply_sets(r, from, origins));
  AD_TRY(ad_reading_fill_pretrained(r));
  AD_TRY(ad_reading_fill(r));
  AD_TRY(name_after_file(r->recipe));
  const ad_program_kind *program = r->recipe->program;
  if (program && program->rules.complete)
    AD_GUEST_VOID(program, "complete", program->rules.complete(r->recipe->options));
  AD_TRY(ad_reading_check(r));
  if (from->with_files) ad_reading_check_files(r, from->with_values);
  AD_TRY(ad_recipe_errors_report(&r->errors));
  return list_given(r);
}

static void release_reading(ad_reading *r) {
  ad_node_destroy(r->root);
  ad_recipe_errors_clear(&r->errors);
  ad_schema_release(&r->schema);
  ad_release(r->nodes);
  ad_release(r->wrong);
  ad_config_release(&r->config);
  ad_release(r->config_path);
}

static ad_status read_with(const source *from, char **origins, ad_recipe *recipe) {
  ad_reading reading = {.recipe = recipe};
  ad_locale before = ad_locale_enter();
  ad_status status = ad_copy_string(from->path, &recipe->path);
  if (!status) status = read_tree(&reading, from, origins);
  ad_locale_leave(before);
  release_reading(&reading);
  return status;
}

static ad_status read_source(const source *from, ad_recipe **out) {
  ad_recipe *recipe = NULL;
  char **origins;
  AD_TRY(ad_new(from->set_count, &origins));
  ad_status status = ad_new(1, &recipe);
  if (!status) status = read_with(from, origins, recipe);
  release_texts(origins, from->set_count);
  if (status) {
    ad_recipe_destroy(recipe);
    return status;
  }
  *out = recipe;
  return AD_OK;
}

ad_status ad_recipe_parse(const char *text, const char *path, const char *const *sets, size_t set_count,
                          ad_recipe **out) {
  AD_NEED(text, path, out);
  if (set_count) AD_NEED(sets);
  for (size_t i = 0; i < set_count; i++) AD_NEED(sets[i]);
  source from = {.text = text, .path = path, .size = strlen(text), .sets = sets, .set_count = set_count};
  return read_source(&from, out);
}

static ad_status read_file(const char *path, source *from, ad_recipe **out) {
  enum { RECIPE_BYTES_MAX = 1 << 20 };
  char *text;
  int64_t size;
  for (size_t i = 0; i < from->set_count; i++) AD_NEED_IN("ad_recipe_read", "sets[i]", from->sets[i]);
  AD_TRY(ad_file_read(path, RECIPE_BYTES_MAX, &text, &size));
  from->text = text;
  from->size = (size_t)size;
  ad_status status = read_source(from, out);
  ad_release(text);
  return status;
}

ad_status ad_recipe_read(const char *path, const char *const *sets, size_t set_count, ad_recipe **out) {
  AD_NEED(path, out);
  if (set_count) AD_NEED(sets);
  source from = {.path = path, .sets = sets, .set_count = set_count, .with_files = 1, .with_values = 1};
  return read_file(path, &from, out);
}

ad_status ad_recipe_read_on_paper(const char *path, const char *const *sets, size_t set_count, ad_recipe **out) {
  AD_NEED(path, out);
  if (set_count) AD_NEED(sets);
  source from = {.path = path, .sets = sets, .set_count = set_count, .with_files = 1};
  return read_file(path, &from, out);
}
