/* The decoder: embedding, blocks around a residual stream, norm, head; trained on text. */
#include "program/decoder.h"

#include <math.h>
#include <stdio.h>
#include "base/memory.h"
#include "nn/parallel.h"

/* ---- the forward pass ---- */

static ad_tensor *block_forward(ad_decoder *d, ad_tape *t, int64_t index, ad_tensor *x) {
  const ad_decoder_block *b = &d->blocks[index];
  ad_tensor *const *params = d->leaves;
  ad_tensor *h = ad_attention_forward(t, params, &b->attention, ad_norm_forward(t, params, &b->attention_norm, x));
  x = ad_add(t, x, h);
  h = d->branch->forward(d, t, params, index, ad_norm_forward(t, params, &b->branch_norm, x));
  return ad_add(t, x, h);
}

static ad_tensor *loss_of(ad_decoder *d, ad_tape *t, ad_tensor *tokens, ad_tensor *targets) {
  ad_tensor *const *params = d->leaves;
  // [batch, seq, d_model]: S0 on dp, S1z on cp, on tp I or S1
  ad_tensor *x = ad_embedding_forward(t, params, &d->embedding, tokens);
  for (int64_t i = 0; i < d->options->layers; i++) x = block_forward(d, t, i, x);
  x = ad_norm_forward(t, params, &d->final_norm, x);
  x = ad_tp_enter(t, x, d->options->sequence_parallel);
  ad_tensor *logits =
      d->options->tied ? ad_embedding_logits(t, params, &d->embedding, x) : ad_linear_forward(t, params, &d->head, x);
  return ad_cross_entropy(t, logits, targets);  // P on dp and cp, I on tp
}

static ad_status forward(void *own, ad_phase_run *at) {
  ad_decoder *d = own;
  ad_tape *t = ad_phase_tape(at);
  const ad_text_microbatch *microbatch = &d->batch.microbatches[ad_phase_microbatch(at)];
  for (size_t i = 0; i < d->param_count; i++) d->leaves[i] = ad_parameter(t, ad_phase_parameters(at), i);
  for (size_t i = 0; i < d->state_count; i++) d->states[i] = ad_phase_state(at, i);
  ad_tensor *tokens = ad_constant(t, &microbatch->tokens), *targets = ad_constant(t, &microbatch->targets);
  ad_phase_loss(at, 0, loss_of(d, t, tokens, targets));
  if (d->branch->end) d->branch->end(d, at);
  return AD_OK;
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
  d->branch->declare(d, to, index);
}

static void declare(ad_decoder *d, ad_declarations *to) {
  const ad_decoder_options *options = d->options;
  double deviation = ad_deviation_keeping_size(options->d_model);
  ad_linear_shape head = {
      .in = options->d_model, .out = AD_VOCABULARY_BYTES, .cutting = AD_CUT_COLUMNS, .deviation = deviation};
  d->embedding = ad_embedding_declare(to, "embedding", AD_VOCABULARY_BYTES, options->d_model, d->parallel, deviation);
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

static ad_status add_module(ad_decoder *d, ad_program *to) {
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  ad_declarations params = ad_declarations_on(mesh);
  declare(d, &params);
  ad_status status = params.status;
  if (!status) {
    count_products(d, &params);
    ad_module_spec spec = {.name = "model",
                           .mesh = mesh,
                           .params = params.list,
                           .param_count = params.count,
                           .states = params.states,
                           .state_count = params.state_count};
    status = ad_program_add_module(to, &spec);
  }
  ad_declarations_release(&params);
  return status;
}

/* ---- the record ---- */

static ad_status create_batch(ad_decoder *d, const ad_program *program) {
  ad_layout layout = ad_text_batch_layout(ad_program_mesh(program, 0));
  return ad_text_batch_create(ad_program_setting_of(program), &layout, &d->options->data, &d->batch);
}

ad_status ad_decoder_create(ad_decoder *d, const ad_decoder_options *options, const ad_branch *branch,
                            double expert_share, ad_program *to) {
  d->options = options;
  d->branch = branch;
  d->expert_share = expert_share;
  d->global_batch = ad_program_setting_of(to)->global_batch;
  d->parallel = (ad_parallel){options->sequence_parallel, options->convert_norms, options->gather_keys};
  d->output_factor = 1 / sqrt(2.0 * (double)options->layers);  // of 2 branches in each layer
  AD_TRY(ad_new((size_t)options->layers, &d->blocks));
  AD_TRY(add_module(d, to));
  AD_TRY(ad_new(d->param_count, &d->leaves));
  AD_TRY(ad_new(d->state_count, &d->states));
  AD_TRY(create_batch(d, to));
  ad_count_spec tokens = {.name = "tokens", .layout = ad_text_count_layout(ad_program_mesh(to, 0))};
  AD_TRY(ad_program_add_count(to, &tokens));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.name = "cross_entropy"}));
  return ad_program_add_phase(to, &(ad_phase){.name = "model", .run = forward});
}

void ad_decoder_release(ad_decoder *d) {
  ad_text_batch_destroy(&d->batch);
  ad_release(d->blocks);
  ad_release(d->leaves);
  ad_release(d->states);
}

ad_status ad_decoder_open(void *own) { return ad_text_batch_open(&((ad_decoder *)own)->batch); }

ad_status ad_decoder_read(void *own, int64_t step, int held_out, int64_t *const *counted) {
  return ad_text_batch_read(&((ad_decoder *)own)->batch, step, held_out, counted[0]);
}

int ad_decoder_has_held_out(const void *own) { return ((const ad_decoder *)own)->options->data.held_out > 0; }

size_t ad_decoder_data_bytes(const void *own) { return ad_text_batch_bytes(&((const ad_decoder *)own)->batch); }

const ad_array *ad_decoder_batch_array(const void *own, size_t index, char *name, size_t size) {
  return ad_text_batch_array(&((const ad_decoder *)own)->batch, index, name, size);
}

// A product costs 2 operations per element and position forward and twice that backward. The two products of causal
// attention touch seq/2 positions for each position.
double ad_decoder_flops(const void *own, int64_t samples) {
  const ad_decoder *d = own;
  double seq = (double)d->options->data.seq;
  double elements = d->product_elements + (double)(d->options->layers * d->options->d_model) * seq;
  return 6.0 * elements * seq * (double)samples;
}

// An element of a gradient is a sum over the step's tokens; an addend passes about 12 operations a layer.
void ad_decoder_lengths(const void *own, double *addends, double *operations) {
  const ad_decoder *d = own;
  *addends = (double)d->global_batch * (double)d->options->data.seq;
  *operations = 12.0 * (double)d->options->layers + 4;
}

const char *ad_decoder_content(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_content(&((const ad_decoder *)own)->batch, index, buffer, size);
}

const char *ad_decoder_fact(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_fact(&((const ad_decoder *)own)->batch, index, buffer, size);
}

const char *const ad_decoder_modules[] = {"model", NULL};
