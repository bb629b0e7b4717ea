/* A recipe on its way from a tree of nodes to the structure: what each part of that work hands to the next. */
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
  const ad_node **nodes; /* of each key of the schema; NULL: not given */
  ad_config config;      /* of model.from; its architecture is NULL where there is none */
  char *config_path;     /* the origin of what it gives */
  int *wrong;            /* of each key: its value could not be read, and is left 0 or empty */
} ad_reading;

/* set.c: the same as ad_reading_set where the path is model, model.kind or model.from; nothing elsewhere. The schema
 * may still be empty. */
AD_CHECKED ad_status ad_reading_set_kind(ad_reading *reading, const char *set, const char *origin, int order);
/* set.c: puts the value of "PATH=VALUE" into the tree. `origin` is "--set PATH" and outlives the reading. */
AD_CHECKED ad_status ad_reading_set(ad_reading *reading, const char *set, const char *origin, int order);
/* pretrained.c: reads the config.json of model.from, and gives the recipe its kind; what it refuses is told. */
AD_CHECKED ad_status ad_reading_open_pretrained(ad_reading *reading);
/* pretrained.c: puts into the tree what it says of the other keys, and tells where the recipe says otherwise. */
AD_CHECKED ad_status ad_reading_fill_pretrained(ad_reading *reading);
/* read.c: tells of unknown keys, and fills the recipe from the tree and the defaults. */
AD_CHECKED ad_status ad_reading_fill(ad_reading *reading);
/* check.c: what no key can tell alone. Looks at no file. */
AD_CHECKED ad_status ad_reading_check(ad_reading *reading);
/* check.c: whether the files that the recipe names can be used; `with_values`: also the values in those of model.from.
 */
void ad_reading_check_files(ad_reading *reading, int with_values);

/* Of a key that only some program may have, while none is known: nothing is to be said of it. */
int ad_reading_may_be_known(const ad_reading *reading, const char *section, const char *path, int has_near_name);
/* Where a key was given, or where it would be. */
ad_recipe_place ad_reading_place(const ad_reading *reading, const char *path);

#endif
