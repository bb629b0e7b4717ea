/* A recipe's weights before any rank starts: their form, their fit to the model, their values. Ranks read them in
 * train/. */
#include "recipe/weights.h"

#include "program/weights.h"
#include "recipe/paper.h"

static ad_status check_fit(const ad_recipe *recipe, const ad_weights *weights) {
  ad_paper paper;
  AD_TRY(ad_paper_open(recipe, &paper));
  ad_status status = ad_program_check_weights(paper.program, weights);
  ad_paper_close(&paper);
  return status;
}

static void tell(ad_status status, const ad_complaints *to) {
  if (status) ad_complain_of(to, "model.weights", status);
}

void ad_recipe_check_weights(const ad_recipe *recipe, int is_right, const ad_complaints *to) {
  ad_weights *weights = NULL;
  const ad_safetensors *file;
  tell(ad_weights_open(recipe->weights, &weights), to);
  if (weights && is_right) tell(check_fit(recipe, weights), to);
  for (size_t i = 0; (file = ad_weights_file(weights, i)); i++) tell(ad_safetensors_check_values(file), to);
  ad_weights_close(weights);
}
