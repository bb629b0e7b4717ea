/* The name of a recipe: it names a folder, and stands in documents and messages. */
#ifndef RECIPE_NAME_H
#define RECIPE_NAME_H
#include "addend/status.h"

enum { AD_NAME_BYTES = 100 };

/* Letters and digits of every script, '.', '_' and '-', neither '.' nor '-' first, at most AD_NAME_BYTES; beyond ASCII
 * every character that is seen counts as a letter. */
int ad_name_is_good(const char *name);
/* The name of a recipe that gives none: "dir/my recipe.yaml" is my-recipe. Whatever the path, the name is good. Caller
 * gives it up with ad_release. */
AD_CHECKED ad_status ad_name_of_file(const char *path, char **out);

#endif
