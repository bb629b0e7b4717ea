/* A recipe on its way from a tree of nodes to the structure: what each part of that work hands to the next. */
#ifndef RECIPE_READING_H
#define RECIPE_READING_H
#include "recipe/document.h"
#include "recipe/schema.h"

typedef struct ad_reading {
  ad_node *root; /* a map */
  ad_mistakes mistakes;
  ad_recipe *recipe;
  const ad_node *nodes[AD_KEYS_MAX]; /* of each key of the schema; NULL: not given */
  int wrong[AD_KEYS_MAX];            /* the key's value could not be read */
} ad_reading;

/* set.c: puts the value of "PATH=VALUE" into the tree. `origin` is "--set PATH" and outlives the reading. */
AD_CHECKED ad_status ad_reading_set(ad_reading *reading, const char *set, const char *origin, int order);
/* read.c: tells of unknown keys, and fills the recipe from the tree and the defaults. */
AD_CHECKED ad_status ad_reading_fill(ad_reading *reading);
/* check.c: what no key can tell alone, and what this version does not do yet. Looks at no file. */
AD_CHECKED ad_status ad_reading_check(ad_reading *reading);
/* check.c: whether the text is there and long enough. */
void ad_reading_check_files(ad_reading *reading);

/* Where a key was given, or where it would be. */
ad_place ad_reading_place(const ad_reading *reading, const char *path);

#endif
