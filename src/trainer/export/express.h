/* Which architecture computes what a recipe's keys say, and the config.json that says it. */
#ifndef EXPORT_EXPRESS_H
#define EXPORT_EXPRESS_H
#include <jansson.h>
#include "addend/recipe.h"
#include "architecture/architecture.h"

/* AD_INVALID where there is none, with the key that each cannot express. */
ad_status ad_express_find(const ad_recipe *recipe, const ad_architecture **out) AD_CHECKED;
/* The config.json of the recipe's model, of tensors in `dtype`. Release with json_decref. */
ad_status ad_express_config(const ad_recipe *recipe, const ad_architecture *architecture, ad_dtype dtype,
                            json_t **out) AD_CHECKED;
/* "bfloat16": as config.json names it. */
const char *ad_express_dtype(ad_dtype dtype);

#endif
