/* The name of a recipe, which names a folder and appears in documents and messages. */
#ifndef RECIPE_NAME_H
#define RECIPE_NAME_H
#include "addend/status.h"

enum { AD_NAME_BYTES = 100 }; /* longest name */

/* 1: the name has only letters and digits of any script, '.', '_' and '-', neither '.' nor '-' first, and at most
 * AD_NAME_BYTES bytes. Beyond ASCII, every visible character counts as a letter. */
int ad_name_is_good(const char *name);
/* Makes the name of a recipe that gives none: "dir/my recipe.yaml" becomes my-recipe. The name is good whatever the
 * path is. Release it with ad_release. */
AD_CHECKED ad_status ad_name_of_file(const char *path, char **out);

#endif
