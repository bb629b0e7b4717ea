/* The program gpt: a decoder whose second branch is an MLP. Its recipe keys are in gpt_keys.c. */
#include <stdio.h>
#include "addend/model.h"
#include "base/memory.h"
#include "program/decoder.h"
#include "program/gpt_keys.h"

typedef struct gpt {
  ad_decoder decoder; /* first: the functions of decoders take a gpt as theirs */
  int64_t d_hidden;
  ad_mlp_layer *mlps; /* of the blocks */
} gpt;

static void declare_mlp(ad_decoder *decoder, ad_declarations *to, int64_t block) {
  gpt *model = (gpt *)decoder;
  ad_mlp_shape shape = {.d_model = decoder->options->d_model,
                        .d_hidden = model->d_hidden,
                        .output_factor = decoder->output_factor,
                        .has_bias = decoder->options->bias,
                        .parallel = decoder->parallel};
  char path[64];
  snprintf(path, sizeof path, "blocks.%lld.mlp", (long long)block);
  model->mlps[block] = ad_mlp_declare(to, path, &shape);
}

static ad_tensor *mlp_forward(ad_decoder *decoder, ad_tape *t, ad_tensor *const *params, int64_t block, ad_tensor *x) {
  return ad_mlp_forward(t, params, &((const gpt *)decoder)->mlps[block], x);
}

static const ad_branch mlp = {.declare = declare_mlp, .forward = mlp_forward};

static ad_status create(const void *options, ad_program *to, void **own) {
  const ad_gpt_options *gpt_options = options;
  gpt *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->d_hidden = ad_gpt_hidden(gpt_options);
  AD_TRY(ad_new((size_t)gpt_options->decoder.layers, &model->mlps));
  return ad_decoder_create(&model->decoder, &gpt_options->decoder, &mlp, 1, to);
}

static void destroy(void *own) {
  gpt *model = own;
  ad_decoder_release(&model->decoder);
  ad_release(model->mlps);
  ad_release(model);
}

const ad_program_kind *ad_gpt(void) {
  static const ad_program_kind kind = {.name = "gpt",
                                       .help = "a decoder of text: rotary attention, SwiGLU, RMSNorm",
                                       .modules = ad_decoder_modules,
                                       .keys = ad_gpt_keys,
                                       .key_count = AD_GPT_KEY_COUNT,
                                       .options_size = sizeof(ad_gpt_options),
                                       .check = ad_gpt_check,
                                       .check_files = ad_gpt_check_files,
                                       .create = create,
                                       .destroy = destroy,
                                       .open = ad_decoder_open,
                                       .read = ad_decoder_read,
                                       .has_held_out = ad_decoder_has_held_out,
                                       .data_bytes = ad_decoder_data_bytes,
                                       .batch_array = ad_decoder_batch_array,
                                       .flops = ad_decoder_flops,
                                       .lengths = ad_decoder_lengths,
                                       .fact = ad_decoder_fact,
                                       .content = ad_decoder_content};
  return &kind;
}
