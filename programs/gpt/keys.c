/* The `model` keys of gpt, and the checks of their values against each other and the mesh. */
#include "gpt/keys.h"

#include <string.h>
#include "gpt/gpt.h"

#define AT(field) offsetof(ad_gpt_options, field)

const ad_key ad_gpt_keys[AD_GPT_KEY_COUNT] = {AD_TEXT_DECODER_KEYS(
    ad_gpt_options, ad_bias_words,
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"})};

int64_t ad_gpt_hidden(const ad_gpt_options *options) {
  return options->d_hidden ? options->d_hidden : ((8 * options->decoder.d_model + 2) / 3 + 15) / 16 * 16;
}

int64_t ad_gpt_usual(const void *options, const char *key) {
  return strcmp(key, "model.d_hidden") ? ad_decoder_usual(options, key) : ad_gpt_hidden(options);
}

/* Checks that every rank of tp gets a part of the MLP's width. The parts may differ in size. */
static void check_hidden(const ad_gpt_options *options, long long tp, const ad_complaints *to) {
  long long hidden = ad_gpt_hidden(options);
  if (hidden < tp)
    ad_complain(to, "model.d_hidden",
                "tp=%lld shards the width of the MLP, which is only %lld; set model.d_hidden to at least %lld", tp,
                hidden, tp);
}

void ad_gpt_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  const ad_gpt_options *gpt = options;
  int64_t tp = ad_mesh_axis_size(meshes[0], AD_TP);
  ad_text_decoder_check("gpt", options, setting, meshes[0], to);
  if (tp > 1) check_hidden(gpt, tp, to);
}
