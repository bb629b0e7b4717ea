/* The schema of recipes: one table of keys that reading, --set, checking and printing walk. It has the keys of every
 * recipe and, in between, those of the program that the recipe names. */
#ifndef RECIPE_SCHEMA_H
#define RECIPE_SCHEMA_H
#include "addend/recipe.h"
#include "base/text.h"

/* The struct that a key's offsets count from. */
typedef enum ad_key_home { AD_HOME_RECIPE, AD_HOME_MESHES, AD_HOME_OPTIONS } ad_key_home;

typedef struct ad_schema_entry {
  ad_key key;
  ad_key_home home;
  char *made; /* its path, where it is none of a table: "mesh.encoder" */
} ad_schema_entry;

typedef struct ad_schema {
  const ad_program_kind *program; /* NULL: none is known, and there are the keys of every recipe only */
  ad_schema_entry *entries;       /* in the order in which they are printed; those of a section follow each other */
  size_t count;
} ad_schema;

/* Where the program has several modules, "mesh" is a section with a key for each. AD_INVALID: a key of the program is
 * there already. */
ad_status ad_schema_create(const ad_program_kind *program, ad_schema *out) AD_CHECKED;
void ad_schema_release(ad_schema *schema);

const ad_schema_entry *ad_schema_find(const ad_schema *schema, const char *path); /* NULL if there is none */
int ad_schema_is_section(const ad_schema *schema, const char *path);              /* some key starts with "path." */
char *ad_schema_base(const ad_schema_entry *entry, const ad_recipe *recipe);      /* of its home */
int ad_key_is_contract(const ad_schema_entry *entry); /* lies in precision.contract: an override may have it too */
const char *ad_key_name(const ad_key *key);           /* "lr" */
const char *ad_key_help(const ad_key *key, char *buffer, size_t size); /* where it is made, in the buffer */
/* Adds "did you mean train.lr?" and returns 1, or the keys that `section` ("" the outermost) has. */
int ad_schema_suggest(const ad_schema *schema, const char *section, const char *unknown, ad_text *out);
/* Adds ".name" to a path as --set writes it, in quotes where the name has dots. */
void ad_path_add(ad_text *path, const char *name);

/* A key's value as YAML in one line, "left out" where it has none. Release with ad_release. */
ad_status ad_recipe_print_key(const ad_recipe *recipe, const ad_schema *schema, const ad_schema_entry *entry,
                              char **out) AD_CHECKED;
/* Whether `written`, by a person, as a default or by an earlier version, is the value that is now printed as `value`;
 * and whether that is the key's default. */
int ad_key_means(const ad_key *key, const char *written, const char *value);
int ad_key_is_default(const ad_key *key, const char *value);
/* Frees what a value owns and leaves it empty. */
void ad_key_release(const ad_key *key, char *base);
/* The same for every value of the recipe and of its program's options, and the meshes. */
void ad_schema_clear(ad_recipe *recipe);
/* Of "sites[].match", a key of each map in the list `sites`: the length of the list's path; 0: it is no such key. */
size_t ad_schema_list_length(const char *path);
int ad_schema_is_list(const ad_schema *schema, const char *path); /* some key is of maps in this list */
size_t ad_schema_mesh_count(const ad_program_kind *program); /* one for each module; 1 if the program is not known */
const char *ad_kinds_known(char *buffer, size_t size);       /* "gpt, moe or ocr"; returns buffer */

extern const char *const ad_sync_names[]; /* by ad_sync */
enum { AD_SYNC_COUNT = AD_SYNC_ALL + 1 };

#endif
