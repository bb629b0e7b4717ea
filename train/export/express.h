/* Finds the architecture that computes a recipe's model, and makes its config.json. */
#ifndef EXPORT_EXPRESS_H
#define EXPORT_EXPRESS_H
#include <jansson.h>
#include "addend/recipe.h"
#include "architecture/architecture.h"

/* Finds an architecture that computes the recipe's model. If there is none, returns AD_INVALID; the message has, for
 * each architecture, the recipe key that it cannot express. */
ad_status ad_express_find(const ad_recipe *recipe, const ad_architecture **out) AD_CHECKED;
/* Makes the config.json of the recipe's model, whose tensors have the dtype `dtype`. Release with json_decref. */
ad_status ad_express_config(const ad_recipe *recipe, const ad_architecture *architecture, ad_dtype dtype,
                            json_t **out) AD_CHECKED;
/* Returns the name of a dtype in config.json: "bfloat16". */
const char *ad_express_dtype(ad_dtype dtype);

#endif
