/* The second branch of a dense decoder: an MLP in each block. */
#include "decoder/mlp_branch.h"

#include <stdio.h>

static void declare(void *own, const ad_decoder *decoder, ad_declarations *to, int64_t block) {
  ad_mlp_branch *branch = own;
  ad_mlp_shape shape = {.d_model = decoder->options->d_model,
                        .d_hidden = branch->d_hidden,
                        .output_factor = decoder->output_factor,
                        .has_bias = decoder->options->bias >= AD_BIAS_MLP,
                        .parallel = decoder->parallel};
  char path[64];
  snprintf(path, sizeof path, "blocks.%lld.mlp", (long long)block);
  branch->layers[block] = ad_mlp_declare(to, path, &shape);
}

static ad_tensor *forward(void *own, const ad_decoder *decoder, ad_tape *t, int64_t block, ad_tensor *x) {
  const ad_mlp_branch *branch = own;
  return ad_mlp_forward(t, decoder->leaves, &branch->layers[block], x);
}

const ad_branch ad_mlp_branch_functions = {.declare = declare, .forward = forward};
