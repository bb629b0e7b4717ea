/* The keys to which a recipe gives values that are not their defaults. */
#ifndef RECIPE_CHANGES_H
#define RECIPE_CHANGES_H
#include "addend/recipe.h"

typedef struct ad_recipe_change {
  char *key;            /* the key's path, such as "train.lr" */
  char *value;          /* the key's value as YAML in one line */
  const char *fallback; /* the key's default; NULL if there is none */
} ad_recipe_change;

typedef struct ad_recipe_changes {
  ad_recipe_change *list;
  size_t count;
} ad_recipe_changes;

/* Lists the keys that the file or --set gives, without those that have their default. */
ad_status ad_recipe_changes_list(const ad_recipe *recipe, ad_recipe_changes *out) AD_CHECKED;
void ad_recipe_changes_release(ad_recipe_changes *changes);

#endif
