/* Checks a recipe's weights before any rank starts: that the files are well-formed, fit the model and have finite
 * values. train/step reads the weights on ranks. */
#include "recipe/weights.h"

#include "architecture/folder.h"
#include "program/weights.h"
#include "recipe/paper.h"

static ad_status check_fit(const ad_recipe *recipe, const ad_architecture *architecture, const ad_weights *weights) {
  ad_paper paper;
  AD_TRY(ad_paper_open(recipe, &paper));
  ad_status status = ad_program_check_weights(paper.program, architecture, weights);
  ad_paper_close(&paper);
  return status;
}

static const char *key_of(const ad_recipe *recipe) { return recipe->from ? "model.from" : "model.weights"; }

static void complain_of_weights(const ad_recipe *recipe, ad_status status, const ad_complaints *to) {
  if (status) ad_complain_of(to, key_of(recipe), status);
}

static ad_status open_files(const ad_recipe *recipe, ad_weights **out) {
  return recipe->from ? ad_pretrained_weights(recipe->from, out) : ad_weights_open(recipe->weights, out);
}

void ad_recipe_check_weights(const ad_recipe *recipe, const ad_architecture *architecture, ad_weights_asked asked,
                             const ad_complaints *to) {
  ad_weights *weights = NULL;
  const ad_safetensors *file;
  /* Nothing to check: neither key is given, or both are, which is an error already. */
  if (!recipe->from == !recipe->weights) return;
  complain_of_weights(recipe, open_files(recipe, &weights), to);
  if (weights && asked.fit) complain_of_weights(recipe, check_fit(recipe, architecture, weights), to);
  for (size_t i = 0; asked.values && (file = ad_weights_file(weights, i)); i++)
    complain_of_weights(recipe, ad_safetensors_check_values(file), to);
  ad_weights_close(weights);
}
