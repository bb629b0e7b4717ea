/* A decoder in one process: its program, and memory for the values of parameters and states. */
#ifndef SAMPLE_MODEL_H
#define SAMPLE_MODEL_H
#include "program/program.h"
#include "program/weights.h"
#include "recipe/alone.h"

typedef struct ad_sample_model {
  ad_comm *comm;
  ad_recipe alone; /* the recipe, changed so that it runs in one process */
  ad_program *program;
  ad_program_params params;
  ad_array *arrays; /* one for each parameter, in the dtype with which it is computed */
  ad_array *states; /* the states of the program's module */
  size_t state_count;
} ad_sample_model;

/* Creates the model with all values 0; the caller writes them. Borrows the recipe. Returns AD_INVALID if the program is
 * no decoder of text. */
ad_status ad_sample_model_create(const ad_recipe *recipe, ad_dtype dtype, ad_sample_model *out) AD_CHECKED;
void ad_sample_model_release(ad_sample_model *model);

#endif
