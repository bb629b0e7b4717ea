/* The decoder: embedding, blocks of attention and MLP around a residual stream, norm, head; trained on text. Its recipe
 * keys are in gpt_keys.c. */
#include <math.h>
#include <stdio.h>
#include "addend/model.h"
#include "base/memory.h"
#include "nn/layers.h"
#include "nn/parallel.h"
#include "program/gpt_keys.h"
#include "program/text_batch.h"

typedef struct block {
  ad_norm_layer attention_norm, mlp_norm;
  ad_attention_layer attention;
  ad_mlp_layer mlp;
} block;

typedef struct gpt {
  const ad_gpt_options *options;
  int64_t d_hidden;
  int64_t global_batch;
  ad_embedding_layer embedding;
  block *blocks;
  ad_norm_layer final_norm;
  ad_linear_layer head;     // unless tied
  double product_elements;  // of all matrices that tokens are multiplied with
  size_t param_count;
  ad_tensor **leaves;  // of the present microbatch, one for each parameter
  ad_text_batch batch;
} gpt;

/* ---- the forward pass ---- */

static ad_tensor *block_forward(ad_tape *t, ad_tensor *const *params, const block *b, ad_tensor *x) {
  ad_tensor *h = ad_attention_forward(t, params, &b->attention, ad_norm_forward(t, params, &b->attention_norm, x));
  x = ad_add(t, x, h);
  h = ad_mlp_forward(t, params, &b->mlp, ad_norm_forward(t, params, &b->mlp_norm, x));
  return ad_add(t, x, h);
}

static ad_tensor *loss_of(const gpt *model, ad_tape *t, ad_tensor *const *params, ad_tensor *tokens,
                          ad_tensor *targets) {
  // [batch, seq, d_model]: S0 on dp, S1z on cp, on tp I or S1
  ad_tensor *x = ad_embedding_forward(t, params, &model->embedding, tokens);
  for (int64_t i = 0; i < model->options->layers; i++) x = block_forward(t, params, &model->blocks[i], x);
  x = ad_norm_forward(t, params, &model->final_norm, x);
  x = ad_tp_enter(t, x, model->options->sequence_parallel);
  ad_tensor *logits = model->options->tied ? ad_embedding_logits(t, params, &model->embedding, x)
                                           : ad_linear_forward(t, params, &model->head, x);
  return ad_cross_entropy(t, logits, targets);  // P on dp and cp, I on tp
}

static ad_status forward(void *own, ad_phase_run *at) {
  gpt *model = own;
  ad_tape *t = ad_phase_tape(at);
  const ad_text_microbatch *microbatch = &model->batch.microbatches[ad_phase_microbatch(at)];
  for (size_t i = 0; i < model->param_count; i++) model->leaves[i] = ad_parameter(t, ad_phase_parameters(at), i);
  ad_tensor *tokens = ad_constant(t, &microbatch->tokens), *targets = ad_constant(t, &microbatch->targets);
  ad_phase_loss(at, 0, loss_of(model, t, model->leaves, tokens, targets));
  return AD_OK;
}

/* ---- parameters ---- */

static ad_parallel parallel_of(const gpt *model) {
  const ad_gpt_options *options = model->options;
  return (ad_parallel){options->sequence_parallel, options->convert_norms, options->gather_keys};
}

static void declare_block(gpt *model, ad_declarations *to, int64_t index) {
  const ad_gpt_options *options = model->options;
  block *b = &model->blocks[index];
  double output_factor = 1 / sqrt(2.0 * (double)options->layers);  // 2 * layers branches add to the residual stream
  ad_attention_shape attention = {.d_model = options->d_model,
                                  .heads = options->heads,
                                  .kv_heads = ad_gpt_kv_heads(options),
                                  .rotary_base = options->rotary_base,
                                  .output_factor = output_factor,
                                  .has_bias = options->bias,
                                  .has_norms = options->qk_norm,
                                  .parallel = parallel_of(model)};
  ad_mlp_shape mlp = {.d_model = options->d_model,
                      .d_hidden = model->d_hidden,
                      .output_factor = output_factor,
                      .has_bias = options->bias,
                      .parallel = parallel_of(model)};
  char norm_path[64], attention_path[64], mlp_path[64];
  snprintf(norm_path, sizeof norm_path, "blocks.%lld.norm", (long long)index);
  snprintf(attention_path, sizeof attention_path, "blocks.%lld.attn", (long long)index);
  snprintf(mlp_path, sizeof mlp_path, "blocks.%lld.mlp", (long long)index);
  b->attention_norm = ad_norm_declare(to, norm_path, "attn", options->d_model, parallel_of(model));
  b->attention = ad_attention_declare(to, attention_path, &attention);
  b->mlp_norm = ad_norm_declare(to, norm_path, "mlp", options->d_model, parallel_of(model));
  b->mlp = ad_mlp_declare(to, mlp_path, &mlp);
}

static void declare_gpt(gpt *model, ad_declarations *to) {
  const ad_gpt_options *options = model->options;
  double deviation = ad_deviation_keeping_size(options->d_model);
  ad_linear_shape head = {
      .in = options->d_model, .out = AD_VOCABULARY_BYTES, .cutting = AD_CUT_COLUMNS, .deviation = deviation};
  model->embedding =
      ad_embedding_declare(to, "embedding", AD_VOCABULARY_BYTES, options->d_model, parallel_of(model), deviation);
  for (int64_t i = 0; i < options->layers; i++) {
    to->unit++;
    declare_block(model, to, i);
  }
  to->unit++;
  model->final_norm = ad_norm_declare(to, "final.norm", "weight", options->d_model, parallel_of(model));
  if (!options->tied) model->head = ad_linear_declare(to, "head", "weight", &head);
}

static int is_product(const gpt *model, size_t param, const ad_param_spec *spec) {
  return spec->shape.ndim == 2 && (param != model->embedding.table || model->options->tied);
}

static void count_products(gpt *model, const ad_declarations *params) {
  model->param_count = params->count;
  for (size_t i = 0; i < params->count; i++) {
    if (is_product(model, i, &params->list[i]))
      model->product_elements += (double)ad_shape_numel(&params->list[i].shape);
  }
}

/* ---- the record ---- */

static ad_status add_module(gpt *model, ad_program *to) {
  const ad_mesh *mesh = ad_program_mesh(to, 0);
  ad_declarations params = ad_declarations_on(mesh);
  declare_gpt(model, &params);
  ad_status status = params.status;
  if (!status) {
    count_products(model, &params);
    ad_module_spec spec = {.name = "model", .mesh = mesh, .params = params.list, .param_count = params.count};
    status = ad_program_add_module(to, &spec);
  }
  ad_declarations_release(&params);
  return status;
}

static ad_status create_batch(gpt *model, const ad_program *program) {
  ad_layout layout = ad_text_batch_layout(ad_program_mesh(program, 0));
  return ad_text_batch_create(ad_program_setting_of(program), &layout, &model->options->data, &model->batch);
}

static ad_status create(const void *options, ad_program *to, void **own) {
  gpt *model;
  AD_TRY(ad_new(1, &model));
  *own = model;
  model->options = options;
  model->d_hidden = ad_gpt_hidden(options);
  model->global_batch = ad_program_setting_of(to)->global_batch;
  AD_TRY(ad_new((size_t)model->options->layers, &model->blocks));
  AD_TRY(add_module(model, to));
  AD_TRY(ad_new(model->param_count, &model->leaves));
  AD_TRY(create_batch(model, to));
  ad_count_spec tokens = {.name = "tokens", .layout = ad_text_count_layout(ad_program_mesh(to, 0))};
  AD_TRY(ad_program_add_count(to, &tokens));
  AD_TRY(ad_program_add_loss(to, &(ad_loss_spec){.name = "cross_entropy"}));
  return ad_program_add_phase(to, &(ad_phase){.name = "model", .run = forward});
}

static void destroy(void *own) {
  gpt *model = own;
  ad_text_batch_destroy(&model->batch);
  ad_release(model->blocks);
  ad_release(model->leaves);
  ad_release(model);
}

static ad_status open(void *own) { return ad_text_batch_open(&((gpt *)own)->batch); }

static ad_status read(void *own, int64_t step, int held_out, int64_t *const *counted) {
  return ad_text_batch_read(&((gpt *)own)->batch, step, held_out, counted[0]);
}

static int has_held_out(const void *own) { return ((const gpt *)own)->options->data.held_out > 0; }

static size_t data_bytes(const void *own) { return ad_text_batch_bytes(&((const gpt *)own)->batch); }

static const ad_array *batch_array(const void *own, size_t index, char *name, size_t size) {
  return ad_text_batch_array(&((const gpt *)own)->batch, index, name, size);
}

// A product costs 2 operations per element and position forward and twice that backward. The two products of causal
// attention touch seq/2 positions for each position.
static double flops(const void *own, int64_t samples) {
  const gpt *model = own;
  const ad_gpt_options *options = model->options;
  double seq = (double)options->data.seq;
  double elements = model->product_elements + (double)(options->layers * options->d_model) * seq;
  return 6.0 * elements * seq * (double)samples;
}

// An element of a gradient is a sum over the step's tokens; an addend passes about 12 operations a layer.
static void lengths(const void *own, double *addends, double *operations) {
  const gpt *model = own;
  *addends = (double)model->global_batch * (double)model->options->data.seq;
  *operations = 12.0 * (double)model->options->layers + 4;
}

static const char *content(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_content(&((const gpt *)own)->batch, index, buffer, size);
}

static const char *fact(const void *own, size_t index, char *buffer, size_t size) {
  return ad_text_batch_fact(&((const gpt *)own)->batch, index, buffer, size);
}

static const char *const modules[] = {"model", NULL};

const ad_program_kind *ad_gpt(void) {
  static const ad_program_kind kind = {.name = "gpt",
                                       .help = "a decoder of text: rotary attention, SwiGLU, RMSNorm",
                                       .modules = modules,
                                       .keys = ad_gpt_keys,
                                       .key_count = AD_GPT_KEY_COUNT,
                                       .options_size = sizeof(ad_gpt_options),
                                       .check = ad_gpt_check,
                                       .check_files = ad_gpt_check_files,
                                       .create = create,
                                       .destroy = destroy,
                                       .open = open,
                                       .read = read,
                                       .has_held_out = has_held_out,
                                       .data_bytes = data_bytes,
                                       .batch_array = batch_array,
                                       .flops = flops,
                                       .lengths = lengths,
                                       .fact = fact,
                                       .content = content};
  return &kind;
}
