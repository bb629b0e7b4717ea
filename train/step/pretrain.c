/* Derives the recipe that is trained first (the pretraining), and the recipe that starts from its weights. train.c
 * decides when they are trained. */
#include "step/pretrain.h"

#include <string.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"

/* Copies the run's recipe and its options, and sets in the copy the path of the weights that the pretraining writes. */
static ad_status know_weights(const ad_recipe *recipe, ad_pretrain *to) {
  const ad_program_kind *program = recipe->program;
  const char *weights = to->weights;
  char *options;
  AD_TRY(ad_new(program->options_size, &options));
  memcpy(options, recipe->options, program->options_size);
  memcpy(options + program->course.pretraining->weights, &weights, sizeof weights);
  to->own = *recipe;
  to->own.options = options;
  return AD_OK;
}

static ad_status create_pretrain(const ad_recipe *recipe, const char *folder, ad_pretrain *to) {
  AD_TRY(ad_recipe_pretraining(recipe, &to->first));
  if (!to->first) return AD_OK;
  AD_TRY(ad_path_in(folder, recipe->program->course.pretraining->name, &to->folder));
  AD_TRY(ad_path_in(to->folder, "weights.safetensors", &to->weights));
  return know_weights(recipe, to);
}

ad_status ad_pretrain_create(const ad_recipe *recipe, const char *folder, ad_pretrain *out) {
  ad_pretrain made = {0};
  ad_status status = create_pretrain(recipe, folder, &made);
  if (status)
    ad_pretrain_release(&made);
  else
    *out = made;
  return status;
}

void ad_pretrain_release(ad_pretrain *pretrain) {
  ad_recipe_destroy(pretrain->first);
  ad_release(pretrain->folder);
  ad_release(pretrain->weights);
  ad_release(pretrain->own.options);
  *pretrain = (ad_pretrain){0};
}
