/* The program gpt: a decoder whose second branch is an MLP. keys.c has its recipe keys. */
#include "gpt/gpt.h"
#include "addend/helpers.h"
#include "gpt/keys.h"
#include "decoder/mlp_branch.h"
#include "decoder/text_decoder.h"

typedef struct gpt {
  ad_text_decoder text; /* must be first: functions of AD_TEXT_DECODER_MEMBERS take a gpt as an ad_text_decoder */
  ad_mlp_branch mlp;
} gpt;

static ad_status create_gpt(const void *options, ad_program *to, void **own) {
  const ad_gpt_options *gpt_options = options;
  gpt *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->mlp.d_hidden = ad_gpt_hidden(gpt_options);
  AD_TRY(ad_new((size_t)gpt_options->decoder.layers, &model->mlp.layers));
  return ad_text_decoder_create(&model->text, &gpt_options->decoder, &ad_mlp_branch_functions, &model->mlp, 1, to);
}

static void destroy_gpt(void *own) {
  gpt *model = own;
  ad_text_decoder_release(&model->text);
  ad_release(model->mlp.layers);
  ad_release(model);
}

static const char *const architectures[] = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                            "MistralForCausalLM", NULL};

const ad_program_kind *ad_gpt(void) {
  static const ad_program_kind kind = {.size = sizeof kind,
                                       .name = "gpt",
                                       .help = "a decoder of text: rotary attention, SwiGLU, RMSNorm",
                                       .keys = ad_gpt_keys,
                                       .key_count = AD_GPT_KEY_COUNT,
                                       .options_size = sizeof(ad_gpt_options),
                                       .create = create_gpt,
                                       .destroy = destroy_gpt,
                                       .read = ad_text_decoder_read,
                                       .rules.check = ad_gpt_check,
                                       .rules.usual = ad_gpt_usual,
                                       .architectures = architectures,
                                       AD_TEXT_DECODER_MEMBERS};
  return &kind;
}
