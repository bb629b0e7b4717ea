/* The state of reading a recipe, from a tree of nodes to the structure; and the functions of this work, in their
 * order. */
#ifndef RECIPE_READING_H
#define RECIPE_READING_H
#include "architecture/config.h"
#include "recipe/document.h"
#include "recipe/schema.h"

typedef struct ad_reading {
  ad_node *root; /* a map */
  ad_recipe_errors errors;
  ad_recipe *recipe;
  ad_schema schema;
  const ad_node **nodes; /* for each key of the schema: its node in the tree; NULL: not given */
  ad_config config;      /* config.json of model.from; its architecture is NULL without model.from */
  char *config_path;     /* the origin of values that config.json gives */
  int *wrong;            /* for each key of the schema: 1 if its value could not be read and is 0 or empty */
} ad_reading;

/* In set.c: ad_reading_set, but only if the path is model, model.kind or model.from; other paths are ignored. The
 * schema may still be empty. */
AD_CHECKED ad_status ad_reading_set_kind(ad_reading *reading, const char *set, const char *origin, int order);
/* In set.c: puts the value of "PATH=VALUE" into the tree. `origin` is "--set PATH" and must outlive the reading. */
AD_CHECKED ad_status ad_reading_set(ad_reading *reading, const char *set, const char *origin, int order);
/* In pretrained.c: reads the config.json of model.from, adds errors for refused keys, and gives the recipe its kind. */
AD_CHECKED ad_status ad_reading_open_pretrained(ad_reading *reading);
/* In pretrained.c: puts the values of config.json into the tree, and adds errors where the recipe gives other values.
 */
AD_CHECKED ad_status ad_reading_fill_pretrained(ad_reading *reading);
/* In read.c: adds errors for unknown keys, and fills the recipe from the tree and from the defaults. */
AD_CHECKED ad_status ad_reading_fill(ad_reading *reading);
/* In check.c: checks keys that depend on each other. Reads no file. */
AD_CHECKED ad_status ad_reading_check(ad_reading *reading);
/* In check.c: checks whether the files that the recipe names can be used; with `with_values`, also the values in the
 * files of model.from. */
void ad_reading_check_files(ad_reading *reading, int with_values);

/* Returns 1 if the program is not known and some program may have this key: it is then not reported as unknown. */
int ad_reading_may_be_known(const ad_reading *reading, const char *section, const char *path, int has_near_name);
/* The place where a key was given, or where it would be. */
ad_recipe_place ad_reading_place(const ad_reading *reading, const char *path);

#endif
