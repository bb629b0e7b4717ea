/* The decoder: embedding, blocks around a residual stream, norm, head. */
#include "program/decoder/decoder.h"

#include <math.h>
#include <stdio.h>
#include "addend/memory.h"
#include "addend/layers.h"
#include "program/decoder/options.h"

/* ---- the forward pass ---- */

static ad_tensor *block_forward(const ad_decoder *d, ad_tape *t, int64_t index, ad_tensor *x) {
  const ad_decoder_block *b = &d->blocks[index];
  ad_tensor *const *params = d->leaves;
  ad_tensor *h = ad_attention_forward(t, params, &b->attention, ad_norm_forward(t, params, &b->attention_norm, x));
  x = ad_add(t, x, h);
  h = d->branch->forward(d->branch_own, d, t, index, ad_norm_forward(t, params, &b->branch_norm, x));
  return ad_add(t, x, h);
}

void ad_decoder_begin(ad_decoder *d, ad_phase_run *at) {
  d->microbatch = ad_phase_microbatch(at);
  for (size_t i = 0; i < d->param_count; i++)
    d->leaves[i] = ad_parameter(ad_phase_tape(at), ad_phase_parameters(at), i);
  for (size_t i = 0; i < d->state_count; i++) d->states[i] = ad_phase_state(at, i);
}

ad_tensor *ad_decoder_embed(const ad_decoder *d, ad_tape *t, ad_tensor *tokens) {
  ad_tensor *x = ad_embedding_forward(t, d->leaves, &d->embedding, tokens);
  return ad_to_dtype(t, x, ad_tape_residual(t));
}

ad_tensor *ad_decoder_embed_whole(const ad_decoder *d, ad_tape *t, ad_tensor *tokens) {
  ad_embedding_layer whole = d->embedding;
  whole.parallel.sequence = 0;
  return ad_to_dtype(t, ad_embedding_forward(t, d->leaves, &whole, tokens), ad_tape_residual(t));
}

ad_tensor *ad_decoder_cut(const ad_decoder *d, ad_tape *t, ad_tensor *x) {
  return d->options->sequence_parallel && ad_tp_is_named(x) ? ad_convert(t, x, "tp", AD_S(1)) : x;
}

ad_tensor *ad_decoder_logits(const ad_decoder *d, ad_tape *t, ad_tensor *x) {
  ad_tensor *const *params = d->leaves;
  for (int64_t i = 0; i < d->options->layers; i++) x = block_forward(d, t, i, x);
  x = ad_norm_forward(t, params, &d->final_norm, x);
  x = ad_tp_enter(t, x, d->parallel);
  return d->options->tied ? ad_embedding_logits(t, params, &d->embedding, x)
                          : ad_linear_forward(t, params, &d->head, x);
}

void ad_decoder_end(const ad_decoder *d, ad_phase_run *at) {
  if (d->branch->end) d->branch->end(d->branch_own, d, at);
}

/* ---- parameters ---- */

static void declare_block(ad_decoder *d, ad_declarations *to, int64_t index) {
  const ad_decoder_options *options = d->options;
  ad_decoder_block *b = &d->blocks[index];
  ad_attention_shape attention = {.d_model = options->d_model,
                                  .heads = options->heads,
                                  .kv_heads = ad_decoder_kv_heads(options),
                                  .rotary_base = options->rotary_base,
                                  .output_factor = d->output_factor,
                                  .has_bias = options->bias,
                                  .has_norms = options->qk_norm,
                                  .parallel = d->parallel};
  char norm_path[64], attention_path[64];
  snprintf(norm_path, sizeof norm_path, "blocks.%lld.norm", (long long)index);
  snprintf(attention_path, sizeof attention_path, "blocks.%lld.attn", (long long)index);
  b->attention_norm = ad_norm_declare(to, norm_path, "attn", options->d_model, d->parallel);
  b->attention = ad_attention_declare(to, attention_path, &attention);
  b->branch_norm = ad_norm_declare(to, norm_path, "mlp", options->d_model, d->parallel);
  d->branch->declare(d->branch_own, d, to, index);
}

static void declare(ad_decoder *d, ad_declarations *to) {
  const ad_decoder_options *options = d->options;
  double deviation = ad_deviation_keeping_size(options->d_model);
  ad_linear_shape head = {
      .in = options->d_model, .out = AD_VOCABULARY_BYTES, .cutting = AD_CUT_COLUMNS, .deviation = deviation};
  ad_embedding_shape embedding = {AD_VOCABULARY_BYTES, options->d_model, deviation, options->tied};
  d->embedding = ad_embedding_declare(to, "embedding", &embedding, d->parallel);
  for (int64_t i = 0; i < options->layers; i++) {
    to->unit++;
    declare_block(d, to, i);
  }
  to->unit++;
  d->final_norm = ad_norm_declare(to, "final.norm", "weight", options->d_model, d->parallel);
  if (!options->tied) d->head = ad_linear_declare(to, "head", "weight", &head);
}

static int is_product(const ad_decoder *d, size_t param, const ad_param_spec *spec) {
  return spec->shape.ndim >= 2 && (param != d->embedding.table || d->options->tied);
}

static void count_products(ad_decoder *d, const ad_declarations *params) {
  d->param_count = params->count;
  d->state_count = params->state_count;
  for (size_t i = 0; i < params->count; i++) {
    const ad_param_spec *spec = &params->list[i];
    double share = spec->shape.ndim == 3 ? d->expert_share : 1;
    if (is_product(d, i, spec)) d->product_elements += share * (double)ad_shape_numel(&spec->shape);
  }
}

/* ---- the whole ---- */

ad_status ad_decoder_declare(ad_decoder *d, const ad_decoder_options *options, const ad_branch *branch,
                             void *branch_own, double expert_share, ad_declarations *to) {
  d->options = options;
  d->branch = branch;
  d->branch_own = branch_own;
  d->expert_share = expert_share;
  d->parallel = (ad_parallel){options->sequence_parallel, options->convert_norms, options->gather_keys};
  d->output_factor = 1 / sqrt(2.0 * (double)options->layers);  // of 2 branches in each layer
  AD_TRY(ad_new((size_t)options->layers, &d->blocks));
  declare(d, to);
  AD_TRY(to->status);
  count_products(d, to);
  AD_TRY(ad_new(d->param_count, &d->leaves));
  return ad_new(d->state_count, &d->states);
}

ad_status ad_decoder_create(ad_decoder *d, const ad_decoder_options *options, const ad_branch *branch, void *branch_own,
                            double expert_share, const char *name, size_t module, ad_program *to) {
  ad_declarations params = ad_declarations_on(ad_program_mesh(to, module));
  ad_status status = ad_decoder_declare(d, options, branch, branch_own, expert_share, &params);
  if (status)
    ad_declarations_release(&params);
  else
    status = ad_program_add_declared(to, name, NULL, &params);
  return status;
}

void ad_decoder_release(ad_decoder *d) {
  ad_release(d->blocks);
  ad_release(d->leaves);
  ad_release(d->states);
}

// A product costs 2 operations per element and position forward and twice that backward. The two products of causal
// attention touch seq/2 positions for each position.
double ad_decoder_flops(const ad_decoder *d, int64_t seq, int64_t samples) {
  double elements = d->product_elements + (double)(d->options->layers * d->options->d_model) * (double)seq;
  return 6.0 * elements * (double)seq * (double)samples;
}
