/* What a recipe says otherwise than it would be without it. */
#ifndef RECIPE_CHANGES_H
#define RECIPE_CHANGES_H
#include "addend/recipe.h"

typedef struct ad_recipe_change {
  char *key;            /* its path */
  char *value;          /* YAML in one line */
  const char *fallback; /* its default; NULL: it has none */
} ad_recipe_change;

typedef struct ad_recipe_changes {
  ad_recipe_change *list;
  size_t count;
} ad_recipe_changes;

/* The keys that the file or --set gives, without those that have their default all the same. */
ad_status ad_recipe_changes_list(const ad_recipe *recipe, ad_recipe_changes *out) AD_CHECKED;
void ad_recipe_changes_release(ad_recipe_changes *changes);

#endif
