/* A trained decoder in one process: its program and the values of its parameters, from a run or from a folder that
 * Transformers saved. */
#ifndef SAMPLE_MODEL_H
#define SAMPLE_MODEL_H
#include "addend/recipe.h"
#include "program/decoder/text_decoder.h"
#include "program/program.h"
#include "program/weights.h"

typedef struct ad_sample_model {
  ad_comm *comm;
  ad_recipe *recipe; /* as it was read */
  ad_recipe alone;   /* the same of one process */
  ad_program *program;
  ad_text_decoder *text;
  ad_program_params params;
  ad_array *arrays; /* of each parameter, in the dtype that it is computed with */
  ad_array *states; /* of the module */
  size_t state_count;
} ad_sample_model;

ad_status ad_sample_model_open(const char *from, ad_dtype dtype, ad_sample_model *out) AD_CHECKED;
void ad_sample_model_close(ad_sample_model *model);

#endif
