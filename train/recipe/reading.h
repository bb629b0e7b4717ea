/* The state while a recipe is read, from a tree of nodes to the struct, and the functions that do this, in their
 * order. */
#ifndef RECIPE_READING_H
#define RECIPE_READING_H
#include "architecture/config.h"
#include "recipe/document.h"
#include "recipe/schema.h"

typedef struct ad_reading {
  ad_node *root; /* always a map */
  ad_recipe_errors errors;
  ad_recipe *recipe;
  ad_schema schema;
  const ad_node **nodes; /* for each key of the schema, its node in the tree, or NULL if the key is not given */
  ad_config config;      /* the config.json of model.from; its architecture is NULL if there is no model.from */
  char *config_path;     /* the origin of values that config.json gives */
  int *wrong;            /* for each key of the schema, 1 if its value could not be read (it is 0 or empty then) */
} ad_reading;

/* In set.c: does what ad_reading_set does if the path is model, model.kind or model.from, and ignores other paths. The
 * schema may still be empty. */
AD_CHECKED ad_status ad_reading_set_kind(ad_reading *reading, const char *set, const char *origin, int order);
/* In set.c: puts the value of "PATH=VALUE" into the tree. `origin` is "--set PATH", and must live as long as the
 * reading. */
AD_CHECKED ad_status ad_reading_set(ad_reading *reading, const char *set, const char *origin, int order);
/* In pretrained.c: reads the config.json of model.from, adds errors about keys that are refused, and sets
 * model.kind. */
AD_CHECKED ad_status ad_reading_open_pretrained(ad_reading *reading);
/* In pretrained.c: puts the values of config.json into the tree, and adds errors if the recipe gives other values. */
AD_CHECKED ad_status ad_reading_fill_pretrained(ad_reading *reading);
/* In read.c: adds errors about unknown keys, and fills the recipe from the tree and from defaults. */
AD_CHECKED ad_status ad_reading_fill(ad_reading *reading);
/* In check.c: checks keys that depend on each other. Reads no file. */
AD_CHECKED ad_status ad_reading_check(ad_reading *reading);
/* In check.c: checks that the files that the recipe names can be used; with `with_values`, also the values in the files
 * of model.from. */
void ad_reading_check_files(ad_reading *reading, int with_values);

/* In values.c: adds the error that this value must be `what`, and is what it is. */
void ad_reading_must_be(ad_reading *reading, const ad_node *node, const char *path, const char *what);
/* In values.c: reads one value of the key's kind into `out`, which is in a recipe or in a list. Returns 1; or adds an error
 * and returns 0. `path` is what the error calls the key. */
int ad_reading_value(ad_reading *reading, const ad_key *key, const ad_node *node, const char *path, void *out);
/* Like ad_reading_value, for AD_KEY_GRADIENT: sets *raw if the value is "raw". */
int ad_reading_gradient(ad_reading *reading, const ad_key *key, const ad_node *node, const char *path, const char *word,
                        void *out, int *raw);
/* In values.c: reads a list of values into `base`, at the key's offsets. A single value counts as a list with one element.
 * Sets *good to 0 if it adds an error. */
AD_CHECKED ad_status ad_reading_list(ad_reading *reading, const ad_key *key, const ad_node *node, const char *path,
                                     char *base, int *good);

/* Returns 1 if the program is not known and some program may have this key, so that the key is not reported as
 * unknown. */
int ad_reading_may_be_known(const ad_reading *reading, const char *section, const char *path, int has_near_name);
/* In values.c, like the next two: returns the node of the key with this path, or NULL. */
const ad_node *ad_reading_find(const ad_node *root, const char *path);
/* Returns where a key is given, or where it would be. */
ad_recipe_place ad_reading_place(const ad_reading *reading, const char *path);
/* Returns where element `index` of a list or a map is given, which may have a line of its own; where the key is given if
 * it has no such element. */
ad_recipe_place ad_reading_element_place(const ad_reading *reading, const char *path, size_t index);

#endif
