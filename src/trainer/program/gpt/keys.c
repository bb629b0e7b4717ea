/* The `model` keys of gpt, and the checks of their values together and with the mesh. */
#include "program/gpt/keys.h"
#include "program/gpt/gpt.h"

#define AT(field) offsetof(ad_gpt_options, field)

const ad_key ad_gpt_keys[AD_GPT_KEY_COUNT] = {
    AD_DECODER_KEYS(ad_gpt_options, decoder, ad_bias_words),
    AD_VOCABULARY_KEY(ad_gpt_options, decoder),
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"},
    AD_TEXT_KEYS(ad_gpt_options, decoder.data)};

int64_t ad_gpt_hidden(const ad_gpt_options *options) {
  return options->d_hidden ? options->d_hidden : ((8 * options->decoder.d_model + 2) / 3 + 15) / 16 * 16;
}

/* tp may cut the width unevenly, but every rank needs a part. */
static void check_hidden(const ad_gpt_options *options, long long tp, const ad_complaints *to) {
  long long hidden = ad_gpt_hidden(options);
  if (hidden < tp)
    ad_complain(to, "model.d_hidden", "tp=%lld cuts the MLP, but it is %lld wide; at least %lld", tp, hidden, tp);
}

void ad_gpt_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  const ad_gpt_options *gpt = options;
  int64_t tp = ad_mesh_axis_size(meshes[0], AD_TP);
  ad_decoder_check("gpt", "mesh", &gpt->decoder, meshes[0], to);
  ad_decoder_check_stages(&gpt->decoder, setting, to);
  ad_decoder_check_text(&gpt->decoder, meshes[0], to);
  if (tp > 1) check_hidden(gpt, tp, to);
}

void ad_gpt_check_files(const void *options, const ad_complaints *to) {
  const ad_decoder_options *decoder = &((const ad_gpt_options *)options)->decoder;
  ad_text_check_files(&decoder->data, ad_decoder_vocabulary(decoder), to);
}
