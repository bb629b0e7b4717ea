/* Checks the weights of model.weights or of model.from before any rank starts. */
#ifndef RECIPE_WEIGHTS_H
#define RECIPE_WEIGHTS_H
#include "addend/recipe.h"
#include "architecture/architecture.h"

typedef struct ad_weights_asked {
  int fit;    /* 1: check that the tensors are the program's parameters; the recipe must have no other errors */
  int values; /* 1: check that all values are finite, which reads each file once from start to end */
} ad_weights_asked;
/* Checks model.weights, or model.from with the architecture in its config.json; does nothing if the recipe has neither.
 * Complains about files that cannot be used and, if `asked` says so, about tensors that are not the program's
 * parameters and about values that are not finite. */
void ad_recipe_check_weights(const ad_recipe *recipe, const ad_architecture *architecture, ad_weights_asked asked,
                             const ad_complaints *to);

#endif
