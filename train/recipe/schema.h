/* The schema of recipes: one table of keys, with which recipes are read, set, checked and printed. It has the keys of
 * every recipe and, among them, those of the program that the recipe names. */
#ifndef RECIPE_SCHEMA_H
#define RECIPE_SCHEMA_H
#include "addend/recipe.h"
#include "base/text.h"

/* Which struct has a key's value; the key's offsets are from the start of that struct. */
typedef enum ad_key_home { AD_HOME_RECIPE, AD_HOME_MESHES, AD_HOME_OPTIONS } ad_key_home;

typedef struct ad_schema_entry {
  ad_key key;
  ad_key_home home;
  char *made; /* the key's path, if it was made for this schema ("mesh.encoder"); owned; else NULL */
} ad_schema_entry;

typedef struct ad_schema {
  const ad_program_kind *program; /* NULL if no program is known; the schema then has only the common keys */
  ad_schema_entry *entries;       /* in the order in which they are printed; the keys of a section are consecutive */
  size_t count;
} ad_schema;

/* Makes the schema for recipes of a program. If the program has several modules, "mesh" is a section with a key for
 * each module. Returns AD_INVALID if a key of the program has the path of a common key. */
ad_status ad_schema_create(const ad_program_kind *program, ad_schema *out) AD_CHECKED;
void ad_schema_release(ad_schema *schema);

/* Returns the entry of the key with this path, or NULL if there is none. */
const ad_schema_entry *ad_schema_find(const ad_schema *schema, const char *path);
/* Returns 1 if some key starts with "path.". */
int ad_schema_is_section(const ad_schema *schema, const char *path);
/* Returns the start of the struct that has the key's value. */
char *ad_schema_base(const ad_schema_entry *entry, const ad_recipe *recipe);
int ad_key_is_precision_policy(const ad_schema_entry *entry);          /* returns 1 if overrides may have this key,
                                                                        * too */
const char *ad_key_name(const ad_key *key);                            /* returns the last part of the path, such as
                                                                        * "lr" */
const char *ad_key_help(const ad_key *key, char *buffer, size_t size); /* returns the help text; `buffer` is used for
                                                                        * a text made of parts */
/* Adds "did you mean train.lr?" and returns 1. If no name is near, lists the keys of `section` ("" is the outermost)
 * and returns 0. */
int ad_schema_suggest(const ad_schema *schema, const char *section, const char *unknown, ad_text *out);
/* Adds ".name" to a path as --set writes it, with quotes if the name has dots. */
void ad_path_add(ad_text *path, const char *name);

/* Prints a key's value as YAML in one line, or "left out" if it has none. Release with ad_release. */
ad_status ad_recipe_print_key(const ad_recipe *recipe, const ad_schema *schema, const ad_schema_entry *entry,
                              char **out) AD_CHECKED;
/* ad_key_means returns 1 if `written` (by a person, as a default or by an earlier version) means the same value as
 * `value`, which this version printed. ad_key_is_default returns 1 if `value` means the key's default. */
int ad_key_means(const ad_key *key, const char *written, const char *value);
int ad_key_is_default(const ad_key *key, const char *value);
/* Frees the memory that a key's value owns, and empties the value. */
void ad_key_release(const ad_key *key, char *base);
/* Frees the meshes, and the memory that the values of the recipe and of its program's options own. */
void ad_schema_clear(ad_recipe *recipe);
/* Returns the length of "sites" for a path such as "sites[].match", the key `match` in each map of the list `sites`; 0
 * for other paths. */
size_t ad_schema_list_length(const char *path);
int ad_schema_is_list(const ad_schema *schema, const char *path); /* returns 1 if the path is a list of maps whose
                                                                   * keys are in the schema */
size_t ad_schema_mesh_count(const ad_program_kind *program);      /* returns the number of modules, each of which has
                                                                   * a mesh; 1 if no program is known */
const char *ad_kinds_known(char *buffer, size_t size);            /* writes the names of all programs, "gpt, moe or
                                                                   * ocr", and returns buffer */

extern const char *const ad_sync_names[];      /* indexed by ad_sync */
extern const char *const ad_optimizer_names[]; /* indexed by ad_optimizer_kind; NULL after the last */
enum { AD_SYNC_COUNT = AD_SYNC_ALL + 1 };

#endif
