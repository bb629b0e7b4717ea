/* The schema of recipes: one table of keys, used to read, set, check and print recipes. It has the keys that every
 * recipe has and, among them, those of the program that the recipe names. */
#ifndef RECIPE_SCHEMA_H
#define RECIPE_SCHEMA_H
#include "addend/recipe.h"
#include "base/text.h"

/* The struct in which a key's value lies, and from whose start its offsets count. */
typedef enum ad_key_home { AD_HOME_RECIPE, AD_HOME_MESHES, AD_HOME_OPTIONS } ad_key_home;

typedef struct ad_schema_entry {
  ad_key key;
  ad_key_home home;
  char *made; /* owned: the path of a key that is made here: "mesh.encoder"; else NULL */
} ad_schema_entry;

typedef struct ad_schema {
  const ad_program_kind *program; /* NULL: no program is known, and the schema has only the keys of every recipe */
  ad_schema_entry *entries;       /* in the order in which they are printed; keys of one section follow each other */
  size_t count;
} ad_schema;

/* Makes the schema of a program's recipes. If the program has several modules, "mesh" is a section with a key for each.
 * AD_INVALID: the program has a key that every recipe has. */
ad_status ad_schema_create(const ad_program_kind *program, ad_schema *out) AD_CHECKED;
void ad_schema_release(ad_schema *schema);

const ad_schema_entry *ad_schema_find(const ad_schema *schema, const char *path); /* NULL: there is none */
int ad_schema_is_section(const ad_schema *schema, const char *path);              /* 1: some key starts with "path." */
char *ad_schema_base(const ad_schema_entry *entry, const ad_recipe *recipe);      /* start of its struct */
int ad_key_is_precision_policy(const ad_schema_entry *entry);          /* 1: an override may have this key too */
const char *ad_key_name(const ad_key *key);                            /* "lr" */
const char *ad_key_help(const ad_key *key, char *buffer, size_t size); /* a help that is made uses buffer */
/* Adds "did you mean train.lr?" and returns 1; or, if no key is near, lists the keys of `section` ("": the outermost)
 * and returns 0. */
int ad_schema_suggest(const ad_schema *schema, const char *section, const char *unknown, ad_text *out);
/* Adds ".name" to a path as --set writes it, with quotes around a name that has dots. */
void ad_path_add(ad_text *path, const char *name);

/* Prints a key's value as YAML in one line, "left out" if it has none. Release with ad_release. */
ad_status ad_recipe_print_key(const ad_recipe *recipe, const ad_schema *schema, const ad_schema_entry *entry,
                              char **out) AD_CHECKED;
/* ad_key_means: 1 if `written`, by a person, as a default or by an earlier version, is the same value as `value`, which
 * is printed now. ad_key_is_default: 1 if `value` is the key's default. */
int ad_key_means(const ad_key *key, const char *written, const char *value);
int ad_key_is_default(const ad_key *key, const char *value);
/* Frees what a value owns and leaves it empty. */
void ad_key_release(const ad_key *key, char *base);
/* Frees what every value of the recipe and of its program's options owns, and the meshes. */
void ad_schema_clear(ad_recipe *recipe);
/* The length of "sites" in "sites[].match", the path of a key in each map of the list `sites`; 0: the path is none of
 * this kind. */
size_t ad_schema_list_length(const char *path);
int ad_schema_is_list(const ad_schema *schema, const char *path); /* 1: this list has maps with keys of the schema */
size_t ad_schema_mesh_count(const ad_program_kind *program);      /* one for each module; 1 if no program is known */
const char *ad_kinds_known(char *buffer, size_t size);            /* "gpt, moe or ocr"; returns buffer */

extern const char *const ad_sync_names[]; /* indexed by ad_sync */
enum { AD_SYNC_COUNT = AD_SYNC_ALL + 1 };

#endif
