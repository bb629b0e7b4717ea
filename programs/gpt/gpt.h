/* The program `gpt`: a decoder trained on text. */
#ifndef GPT_GPT_H
#define GPT_GPT_H
#include "decoder/options.h"

typedef struct ad_gpt_options {
  ad_decoder_options decoder;
  int64_t d_hidden; /* width inside the MLP; 0: 8/3 d_model rounded up to a multiple of 16 */
} ad_gpt_options;

/* The program kind "gpt": one module "model", or one for each stage of a pipeline, with one phase each. The loss is the
 * sum "cross_entropy" divided by the count "tokens". */
const ad_program_kind *ad_gpt(void);

#endif
