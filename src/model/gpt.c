/* The decoder: embedding, blocks of attention and MLP around a residual stream, norm, head. */
#include <math.h>
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/text.h"
#include "model/model.h"
#include "nn/layers.h"

typedef struct block {
  ad_norm_layer attention_norm, mlp_norm;
  ad_attention_layer attention;
  ad_mlp_layer mlp;
} block;

typedef struct gpt {
  ad_gpt_options options;
  ad_embedding_layer embedding;
  block *blocks;
  ad_norm_layer final_norm;
  ad_linear_layer head;  // unless tied
} gpt;

static ad_tensor *block_forward(ad_tape *t, ad_tensor *const *params, const block *b, ad_tensor *x) {
  ad_tensor *h = ad_attention_forward(t, params, &b->attention, ad_norm_forward(t, params, &b->attention_norm, x));
  x = ad_add(t, x, h);
  h = ad_mlp_forward(t, params, &b->mlp, ad_norm_forward(t, params, &b->mlp_norm, x));
  return ad_add(t, x, h);
}

static ad_tensor *gpt_loss(const void *own, ad_tape *t, ad_tensor *const *params, ad_tensor *tokens,
                           ad_tensor *targets) {
  const gpt *model = own;
  ad_tensor *x = ad_embedding_forward(t, params, &model->embedding, tokens);  // [batch, seq, d_model] S(0) on dp
  for (int64_t i = 0; i < model->options.layers; i++) x = block_forward(t, params, &model->blocks[i], x);
  x = ad_norm_forward(t, params, &model->final_norm, x);
  ad_tensor *logits = model->options.tied ? ad_embedding_logits(t, params, &model->embedding, x)
                                          : ad_linear_forward(t, params, &model->head, x);
  ad_tensor *loss = ad_cross_entropy(t, logits, targets);  // P on dp; R on cp, where every rank has the whole sequence
  return ad_once(t, loss, "cp");
}

static int is_product(const gpt *model, size_t param, const ad_param_spec *declaration) {
  return declaration->shape.ndim == 2 && (param != model->embedding.table || model->options.tied);
}

// A product costs 2 operations per element and position forward and twice that backward. The two products of causal
// attention touch seq/2 positions for each position.
static double gpt_flops(const void *own, const ad_declarations *params) {
  const gpt *model = own;
  const ad_gpt_options *options = &model->options;
  double elements = 0;
  for (size_t i = 0; i < params->count; i++) {
    if (is_product(model, i, &params->list[i])) elements += (double)ad_shape_numel(&params->list[i].shape);
  }
  elements += (double)(options->layers * options->seq * options->d_model);
  return 6.0 * elements * (double)options->seq;
}

static void gpt_destroy(void *own) {
  gpt *model = own;
  ad_release(model->blocks);
  ad_release(model);
}

static const ad_model_kind gpt_kind = {"gpt", gpt_loss, gpt_flops, gpt_destroy};

static void declare_block(gpt *model, ad_declarations *to, int64_t index) {
  const ad_gpt_options *options = &model->options;
  block *b = &model->blocks[index];
  double output_factor = 1 / sqrt(2.0 * (double)options->layers);  // 2 * layers branches add to the residual stream
  char norm[64], attention[64], mlp[64];
  snprintf(norm, sizeof norm, "blocks.%lld.norm", (long long)index);
  snprintf(attention, sizeof attention, "blocks.%lld.attn", (long long)index);
  snprintf(mlp, sizeof mlp, "blocks.%lld.mlp", (long long)index);
  b->attention_norm = ad_norm_declare(to, norm, "attn", options->d_model);
  b->attention =
      ad_attention_declare(to, attention, options->d_model, options->heads, options->rotary_base, output_factor);
  b->mlp_norm = ad_norm_declare(to, norm, "mlp", options->d_model);
  b->mlp = ad_mlp_declare(to, mlp, options->d_model, options->d_hidden, output_factor);
}

static void declare_gpt(gpt *model, ad_declarations *to) {
  const ad_gpt_options *options = &model->options;
  double deviation = ad_deviation_keeping_size(options->d_model);
  model->embedding = ad_embedding_declare(to, "embedding", options->vocabulary, options->d_model, deviation);
  for (int64_t i = 0; i < options->layers; i++) {
    to->unit++;
    declare_block(model, to, i);
  }
  to->unit++;
  model->final_norm = ad_norm_declare(to, "final.norm", "weight", options->d_model);
  if (!options->tied) {
    model->head = ad_linear_declare(to, "head", "weight", options->d_model, options->vocabulary, deviation);
  }
}

static void set_defaults(ad_gpt_options *options) {
  if (!options->d_hidden) options->d_hidden = ((8 * options->d_model + 2) / 3 + 15) / 16 * 16;
  if (!options->vocabulary) options->vocabulary = 256;
  if (!options->rotary_base) options->rotary_base = 10000;
}

static void require_positive(ad_text *problems, const char *name, int64_t value, int64_t least) {
  if (value >= least) return;
  ad_text_add(problems, "%s%s must be at least %lld, is %lld", problems->used ? "; " : "", name, (long long)least,
              (long long)value);
}

static void require_heads_to_fit(ad_text *problems, const ad_gpt_options *options) {
  if (options->heads < 1 || options->d_model < 1 || options->d_model % (2 * options->heads) == 0) return;
  ad_text_add(problems, "%sd_model %lld does not divide into %lld heads of an even size (rotary positions turn pairs)",
              problems->used ? "; " : "", (long long)options->d_model, (long long)options->heads);
}

static ad_status check(const ad_gpt_options *options) {
  char buffer[512];
  ad_text problems = ad_text_on(buffer, sizeof buffer);
  require_positive(&problems, "layers", options->layers, 1);
  require_positive(&problems, "d_model", options->d_model, 1);
  require_positive(&problems, "heads", options->heads, 1);
  require_positive(&problems, "d_hidden", options->d_hidden, 0);
  require_positive(&problems, "vocabulary", options->vocabulary, 0);
  require_positive(&problems, "seq", options->seq, 1);
  require_heads_to_fit(&problems, options);
  if (!(options->rotary_base >= 0)) {
    ad_text_add(&problems, "%srotary_base must be above 0, is %g", problems.used ? "; " : "", options->rotary_base);
  }
  return problems.used ? ad_fail(AD_INVALID, "gpt: %s", buffer) : AD_OK;
}

static ad_status new_gpt(const ad_gpt_options *options, gpt **out) {
  gpt *model;
  AD_TRY(ad_new(1, &model));
  ad_status status = ad_new((size_t)options->layers, &model->blocks);
  if (status) {
    ad_release(model);
    return status;
  }
  model->options = *options;
  *out = model;
  return AD_OK;
}

ad_status ad_gpt_create(const ad_mesh *mesh, const ad_gpt_options *options, ad_model **out) {
  AD_NEED(mesh, out);
  ad_gpt_options complete;
  AD_TRY(ad_options_take(&complete, sizeof complete, options, "ad_gpt_options"));
  AD_TRY(check(&complete));
  set_defaults(&complete);
  gpt *model;
  AD_TRY(new_gpt(&complete, &model));
  ad_declarations params = ad_declarations_on(mesh);
  declare_gpt(model, &params);
  return ad_model_create(&gpt_kind, mesh, &params, model, out);
}
