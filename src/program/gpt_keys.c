/* The `model` keys of gpt, and what they say together and with the mesh. */
#include "program/gpt_keys.h"

#define AT(field) offsetof(ad_gpt_options, field)

const ad_key ad_gpt_keys[AD_GPT_KEY_COUNT] = {
    {"model.layers", AD_KEY_INTEGER, .offset = AT(layers), .least = 1, .most = 4096,
     .help = "blocks of attention and MLP"},
    {"model.d_model", AD_KEY_INTEGER, .offset = AT(d_model), .least = 1, .most = 1 << 20, .help = "width of a token"},
    {"model.heads", AD_KEY_INTEGER, .offset = AT(heads), .least = 1, .most = 1 << 20,
     .help = "attention heads; they divide d_model into even parts"},
    {"model.d_hidden", AD_KEY_INTEGER, .offset = AT(d_hidden), .least = 0, .most = 1 << 22, .fallback = "0",
     .help = "width inside the MLP; 0: 8/3 d_model, rounded up to a multiple of 16"},
    {"model.tied", AD_KEY_BOOLEAN, .offset = AT(tied), .fallback = "true", .help = "the head is the embedding"},
    {"model.rotary_base", AD_KEY_NUMBER, .offset = AT(rotary_base), .least = 1, .most = 1e12, .open_least = 1,
     .fallback = "10000", .help = "slowest rotation of the positions"},
    AD_TEXT_KEYS(ad_gpt_options, data)};

int64_t ad_gpt_hidden(const ad_gpt_options *options) {
  return options->d_hidden ? options->d_hidden : ((8 * options->d_model + 2) / 3 + 15) / 16 * 16;
}

static void check_heads(const ad_gpt_options *options, const ad_complaints *to) {
  long long d_model = options->d_model, heads = options->heads;
  if (d_model < 1 || heads < 1) return;
  if (d_model % heads)
    ad_complain(to, "model.heads", "must divide d_model: %lld is no multiple of %lld", d_model, heads);
  else if (d_model / heads % 2)
    ad_complain(to, "model.heads", "must leave each head an even width (positions rotate pairs): %lld / %lld is %lld",
                d_model, heads, d_model / heads);
}

/* Goes, axis by axis, with what gpt learns to be distributed over. */
static void check_axes(const ad_mesh *mesh, const ad_complaints *to) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int64_t size = ad_mesh_axis_size(mesh, (ad_axis)axis);
    if (size > 1 && !(AD_AXES(axis) & AD_AXES_DP))
      ad_complain(to, "mesh", "%s=%lld is not available yet: this version trains on dp_replicate and dp_shard",
                  ad_axis_name((ad_axis)axis), (long long)size);
  }
}

void ad_gpt_check(const void *options, const ad_program_setting *setting, const ad_mesh *const *meshes,
                  const ad_complaints *to) {
  check_heads(options, to);
  check_axes(meshes[0], to);
}

void ad_gpt_check_files(const void *options, const ad_complaints *to) {
  ad_text_check_files(&((const ad_gpt_options *)options)->data, to);
}
