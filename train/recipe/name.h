/* The name of a recipe, which is the name of a folder and appears in documents and messages. */
#ifndef RECIPE_NAME_H
#define RECIPE_NAME_H
#include "addend/status.h"

enum { AD_NAME_BYTES = 100 }; /* the most bytes of a name */

/* Returns 1 if the name has only letters and digits of any script, '.', '_' and '-', begins with neither '.' nor
 * '-', and has at most AD_NAME_BYTES bytes. Beyond ASCII, every visible character counts as a letter. */
int ad_name_is_good(const char *name);
/* Makes a name for a recipe that has none: "dir/my recipe.yaml" becomes my-recipe. For any path the result satisfies
 * ad_name_is_good. Release with ad_release. */
AD_CHECKED ad_status ad_name_of_file(const char *path, char **out);

#endif
