/* The program moe: a decoder whose second branch is a mixture of experts. Its recipe keys are in moe_keys.c. */
#include <math.h>
#include <stdio.h>
#include "addend/model.h"
#include "base/memory.h"
#include "program/decoder.h"
#include "program/moe_keys.h"

typedef struct moe {
  ad_decoder decoder; /* first: the functions of decoders take a moe as theirs */
  const ad_moe_options *options;
  ad_mesh *view;
  ad_experts_layer *layers; /* of the blocks */
  double margin;            /* of the present step's choices */
} moe;

static void declare_experts(ad_decoder *decoder, ad_declarations *to, int64_t block) {
  moe *model = (moe *)decoder;
  const ad_moe_options *options = model->options;
  ad_experts_shape shape = {.d_model = decoder->options->d_model,
                            .experts = options->experts,
                            .hidden = options->expert_hidden,
                            .top_k = options->top_k,
                            .shared_hidden = options->shared_experts,
                            .uses_sigmoid = options->sigmoid,
                            .scores_first = options->score_before_experts,
                            .gate_is_summed = options->summed_gate,
                            .output_factor = decoder->output_factor,
                            .view = model->view,
                            .parallel = decoder->parallel};
  char path[64];
  snprintf(path, sizeof path, "blocks.%lld.moe", (long long)block);
  model->layers[block] = ad_experts_declare(to, path, &shape);
}

static ad_tensor *experts_forward(ad_decoder *decoder, ad_tape *t, ad_tensor *const *params, int64_t block,
                                  ad_tensor *x) {
  moe *model = (moe *)decoder;
  return ad_experts_forward(t, params, &model->layers[block], x, &model->margin);
}

static const ad_branch experts = {declare_experts, experts_forward};

static ad_status create(const void *options, ad_program *to, void **own) {
  const ad_moe_options *moe_options = options;
  moe *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->options = moe_options;
  AD_TRY(ad_moe_view(moe_options, ad_program_mesh(to, 0), &model->view));
  AD_TRY(ad_new((size_t)moe_options->decoder.layers, &model->layers));
  double share = (double)moe_options->top_k / (double)moe_options->experts;
  return ad_decoder_create(&model->decoder, &moe_options->decoder, &experts, share, to);
}

static void destroy(void *own) {
  moe *model = own;
  ad_decoder_release(&model->decoder);
  ad_mesh_destroy(model->view);
  ad_release(model->layers);
  ad_release(model);
}

static ad_status read(void *own, int64_t step, int held_out, int64_t *const *counted) {
  ((moe *)own)->margin = INFINITY;
  return ad_decoder_read(own, step, held_out, counted);
}

static double margin(const void *own) { return ((const moe *)own)->margin; }

const ad_program_kind *ad_moe(void) {
  static const ad_program_kind kind = {.name = "moe",
                                       .help = "a decoder of text with mixtures of experts",
                                       .modules = ad_decoder_modules,
                                       .keys = ad_moe_keys,
                                       .key_count = AD_MOE_KEY_COUNT,
                                       .options_size = sizeof(ad_moe_options),
                                       .check = ad_moe_check,
                                       .check_files = ad_moe_check_files,
                                       .create = create,
                                       .destroy = destroy,
                                       .open = ad_decoder_open,
                                       .read = read,
                                       .margin = margin,
                                       .has_held_out = ad_decoder_has_held_out,
                                       .data_bytes = ad_decoder_data_bytes,
                                       .batch_array = ad_decoder_batch_array,
                                       .flops = ad_decoder_flops,
                                       .lengths = ad_decoder_lengths,
                                       .fact = ad_decoder_fact,
                                       .content = ad_decoder_content};
  return &kind;
}
