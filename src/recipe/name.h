/* The name of a recipe: it names a folder, and stands in documents and messages. */
#ifndef RECIPE_NAME_H
#define RECIPE_NAME_H
#include "addend/status.h"

enum { AD_NAME_BYTES = 100 };

/* ASCII letters and digits, '.', '_' and '-', letters of every other script; at most AD_NAME_BYTES, and no dot first.
 */
int ad_name_is_good(const char *name);
/* The name of a recipe that gives none: "dir/my recipe.yaml" is my-recipe. Whatever the path, the name is good. Caller
 * gives it up with ad_release. */
AD_CHECKED ad_status ad_name_of_file(const char *path, char **out);

#endif
