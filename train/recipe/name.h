/* The name of a recipe. It is the name of a folder, and appears in documents and messages. */
#ifndef RECIPE_NAME_H
#define RECIPE_NAME_H
#include "addend/status.h"

enum { AD_NAME_BYTES = 100 }; /* longest name */

/* Returns 1 if the name has only letters and digits of any script, '.', '_' and '-', begins with neither '.' nor
 * '-', and has at most AD_NAME_BYTES bytes. Beyond ASCII, every visible character counts as a letter. */
int ad_name_is_good(const char *name);
/* Makes a name for a recipe without one: "dir/my recipe.yaml" becomes my-recipe. The name is good for any path.
 * Release it with ad_release. */
AD_CHECKED ad_status ad_name_of_file(const char *path, char **out);

#endif
