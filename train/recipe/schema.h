/* The schema of recipes: one table of keys, by which recipes are read, set, checked and printed. It has the keys of
 * every recipe and, among them, those of the program that the recipe names. */
#ifndef RECIPE_SCHEMA_H
#define RECIPE_SCHEMA_H
#include "addend/recipe.h"
#include "base/text.h"

/* The struct that has a key's value; the key's offsets count from the start of this struct. */
typedef enum ad_key_home { AD_HOME_RECIPE, AD_HOME_MESHES, AD_HOME_OPTIONS } ad_key_home;

typedef struct ad_schema_entry {
  ad_key key;
  ad_key_home home;
  char *made; /* owned: the path of a key that is made for one schema ("mesh.encoder"); else NULL */
} ad_schema_entry;

typedef struct ad_schema {
  const ad_program_kind *program; /* NULL: no program is known, and the schema has only the keys of every recipe */
  ad_schema_entry *entries;       /* in the order in which they are printed; keys of one section follow each other */
  size_t count;
} ad_schema;

/* Makes the schema of a program's recipes. If the program has several modules, "mesh" is a section with a key for
 * each module. AD_INVALID if the program has a key with the path of a common key. */
ad_status ad_schema_create(const ad_program_kind *program, ad_schema *out) AD_CHECKED;
void ad_schema_release(ad_schema *schema);

const ad_schema_entry *ad_schema_find(const ad_schema *schema, const char *path); /* NULL if there is none */
int ad_schema_is_section(const ad_schema *schema, const char *path);              /* 1: some key starts with "path." */
char *ad_schema_base(const ad_schema_entry *entry, const ad_recipe *recipe);      /* start of its struct */
int ad_key_is_precision_policy(const ad_schema_entry *entry);          /* 1: overrides may have this key, too */
const char *ad_key_name(const ad_key *key);                            /* "lr" */
const char *ad_key_help(const ad_key *key, char *buffer, size_t size); /* the help text; buffer is for composed texts */
/* Adds "did you mean train.lr?" and returns 1. If no key is near, lists the keys of `section` ("": the outermost)
 * and returns 0. */
int ad_schema_suggest(const ad_schema *schema, const char *section, const char *unknown, ad_text *out);
/* Adds ".name" to a path as --set writes it, with quotes around a name that has dots. */
void ad_path_add(ad_text *path, const char *name);

/* Prints a key's value as YAML in one line, "left out" if it has none. Release with ad_release. */
ad_status ad_recipe_print_key(const ad_recipe *recipe, const ad_schema *schema, const ad_schema_entry *entry,
                              char **out) AD_CHECKED;
/* ad_key_means: returns 1 if `written` (by a person, as a default or by an earlier version) is the same value as
 * `value`, which is printed by this version. ad_key_is_default: returns 1 if `value` is the key's default. */
int ad_key_means(const ad_key *key, const char *written, const char *value);
int ad_key_is_default(const ad_key *key, const char *value);
/* Frees the memory that a value owns, and leaves the value empty. */
void ad_key_release(const ad_key *key, char *base);
/* Frees the memory that the values of the recipe and of its program's options own, and the meshes. */
void ad_schema_clear(ad_recipe *recipe);
/* The length of "sites" in "sites[].match", which is the path of the key `match` in each map of the list `sites`; 0
 * for other paths. */
size_t ad_schema_list_length(const char *path);
int ad_schema_is_list(const ad_schema *schema, const char *path); /* returns 1 for a list of maps with own keys */
size_t ad_schema_mesh_count(const ad_program_kind *program);      /* one for each module; 1 if no program is known */
const char *ad_kinds_known(char *buffer, size_t size);            /* "gpt, moe or ocr"; returns buffer */

extern const char *const ad_sync_names[]; /* indexed by ad_sync */
enum { AD_SYNC_COUNT = AD_SYNC_ALL + 1 };

#endif
