/* The decoder: embedding, blocks around a residual stream, norm, head. */
#include "decoder/decoder.h"

#include <math.h>
#include <stdio.h>
#include "addend/helpers.h"
#include "addend/layers.h"
#include "decoder/options.h"
#include "decoder/stages.h"
#include "decoder/text_batch.h"

/* ---- the forward pass ---- */

static ad_tensor *block_forward(const ad_decoder *d, ad_tape *t, int64_t index, ad_tensor *x, ad_kept_keys *kept) {
  const ad_decoder_block *b = &d->blocks[index];
  ad_tensor *const *params = d->leaves;
  ad_tensor *h = ad_norm_forward(t, params, &b->attention_norm, x);
  h = ad_attention_continue(t, params, &b->attention, h, kept);
  x = ad_add(t, x, h);
  h = d->branch->forward(d->branch_own, d, t, index, ad_norm_forward(t, params, &b->branch_norm, x));
  return ad_add(t, x, h);
}

void ad_decoder_begin(ad_decoder *d, ad_phase_run *at, size_t stage) {
  d->microbatch = ad_phase_microbatch(at);
  d->discards = ad_phase_discards(at);
  d->stage = &d->stages[stage];
  for (size_t i = 0; i < d->stage->param_count; i++)
    d->leaves[i] = ad_parameter(ad_phase_tape(at), ad_phase_parameters(at), i);
  for (size_t i = 0; i < d->stage->state_count; i++) d->states[d->stage->first_state + i] = ad_phase_state(at, i);
}

ad_tensor *ad_decoder_embed(const ad_decoder *d, ad_tape *t, ad_tensor *tokens) {
  ad_tensor *x = ad_embedding_forward(t, d->leaves, &d->embedding, tokens);
  return ad_to_dtype(t, x, ad_tape_residual(t));
}

ad_tensor *ad_decoder_embed_full(const ad_decoder *d, ad_tape *t, ad_tensor *tokens) {
  ad_embedding_layer full = d->embedding;
  full.parallel.sequence = 0;
  return ad_to_dtype(t, ad_embedding_forward(t, d->leaves, &full, tokens), ad_tape_residual(t));
}

ad_tensor *ad_decoder_shard(const ad_decoder *d, ad_tape *t, ad_tensor *x) {
  return d->options->sequence_parallel && ad_tp_is_named(x) ? ad_convert(t, x, "tp", AD_S(1)) : x;
}

static const char *layer_name(const ad_decoder *d, int64_t block, char name[AD_PARAM_NAME_SIZE]) {
  snprintf(name, AD_PARAM_NAME_SIZE, "%sblocks.%lld", d->layer_prefix, (long long)block);
  return name;
}

ad_tensor *ad_decoder_blocks(const ad_decoder *d, ad_tape *t, ad_tensor *x) {
  ad_span blocks = d->stage->blocks;
  const ad_tensor *first = x;
  for (int64_t i = 0; i < blocks.count; i++) {
    const ad_tensor *enters = x;
    char layer[AD_PARAM_NAME_SIZE];
    x = block_forward(d, t, blocks.first + i, x, NULL);
    ad_forget(first, x);
    if (d->layer_prefix) ad_recompute(enters, x, layer_name(d, blocks.first + i, layer));
  }
  return x;
}

/* Returns the last token's row of x [1, seq, d_model]. Sampling needs only this row, because it computes only the
 * logits of the next token. */
static ad_tensor *last_row(ad_tape *t, ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  if (!array || ad_tape_status(t)) return x;
  ad_array row = *array;
  size_t bytes = (size_t)row.shape.dim[2] * ad_dtype_size(row.dtype);
  row.data = (char *)row.data + (size_t)(row.shape.dim[1] - 1) * bytes;
  row.shape.dim[1] = row.local.dim[1] = 1;
  return ad_constant(t, &row);
}

ad_tensor *ad_decoder_continue(const ad_decoder *d, ad_tape *t, ad_tensor *tokens, ad_kept_keys *const *kept) {
  ad_tensor *x = ad_decoder_embed(d, t, tokens);
  for (int64_t i = 0; i < d->options->layers; i++) x = block_forward(d, t, i, x, kept[i]);
  return ad_decoder_head(d, t, last_row(t, x), NULL);
}

ad_tensor *ad_decoder_head(const ad_decoder *d, ad_tape *t, ad_tensor *x, ad_tensor *table) {
  ad_tensor *const *params = d->leaves;
  x = ad_norm_forward(t, params, &d->final_norm, x);
  x = ad_tp_enter(t, x, d->parallel);
  if (table) return ad_linear_transposed(t, x, table);
  return d->options->tied ? ad_embedding_logits(t, params, &d->embedding, x)
                          : ad_linear_forward(t, params, &d->head, x);
}

ad_tensor *ad_decoder_logits(const ad_decoder *d, ad_tape *t, ad_tensor *x) {
  return ad_decoder_head(d, t, ad_decoder_blocks(d, t, x), NULL);
}

void ad_decoder_end(const ad_decoder *d, ad_phase_run *at) {
  if (d->branch->end) d->branch->end(d->branch_own, d, at);
}

/* ---- declaring the decoder's parameters ---- */

static ad_norm_layer declare_norm(const ad_decoder *d, ad_declarations *to, const char *path, const char *name) {
  ad_norm_layer norm = ad_norm_declare(to, path, name, d->options->d_model, d->parallel);
  norm.epsilon = d->options->norm_epsilon;
  return norm;
}

static void declare_block(ad_decoder *d, ad_declarations *to, int64_t index) {
  const ad_decoder_options *options = d->options;
  ad_decoder_block *b = &d->blocks[index];
  ad_attention_shape attention = {.d_model = options->d_model,
                                  .heads = options->heads,
                                  .kv_heads = ad_decoder_kv_heads(options),
                                  .rotary_base = options->rotary_base,
                                  .output_factor = d->output_factor,
                                  .has_bias = options->bias && options->bias != AD_BIAS_MLP,
                                  .has_norms = options->qk_norm,
                                  .parallel = d->parallel,
                                  .head_dim = ad_decoder_head_dim(options),
                                  .has_no_output_bias = options->bias == AD_BIAS_QKV,
                                  .norm_epsilon = options->norm_epsilon,
                                  .rotary_scaling = ad_decoder_rotary_scaling(options)};
  char norm_path[64], attention_path[64];
  snprintf(norm_path, sizeof norm_path, "blocks.%lld.norm", (long long)index);
  snprintf(attention_path, sizeof attention_path, "blocks.%lld.attn", (long long)index);
  b->attention_norm = declare_norm(d, to, norm_path, "attn");
  b->attention = ad_attention_declare(to, attention_path, &attention);
  b->branch_norm = declare_norm(d, to, norm_path, "mlp");
  d->branch->declare(d->branch_own, d, to, index);
}

static void declare_embedding(ad_decoder *d, ad_declarations *to) {
  ad_embedding_shape embedding = {ad_decoder_vocabulary(d->options), d->options->d_model,
                                  ad_deviation_keeping_size(d->options->d_model),
                                  d->options->tied && d->stage_count == 1};
  d->embedding = ad_embedding_declare(to, "embedding", &embedding, d->parallel);
  if (!to->status) d->table = to->list[d->embedding.table].layout;
}

static void declare_head(ad_decoder *d, ad_declarations *to) {
  const ad_decoder_options *options = d->options;
  ad_linear_shape head = {.in = options->d_model,
                          .out = ad_decoder_vocabulary(options),
                          .sharding = AD_SHARD_COLUMNS,
                          .deviation = ad_deviation_keeping_size(options->d_model)};
  d->final_norm = declare_norm(d, to, "final.norm", "weight");
  if (!options->tied) d->head = ad_linear_declare(to, "head", "weight", &head);
}

/* ---- counting matrix products ---- */

static double head_elements(const ad_decoder *d) {
  return (double)(ad_decoder_vocabulary(d->options) * d->options->d_model);
}

/* Returns the number of matrix elements that a token is multiplied with on this stage. Matrices of experts count by the
 * share that one token uses. The first stage's embedding does not count, because its rows are only looked up. */
static double elements_of(const ad_decoder *d, const ad_declarations *params, const ad_decoder_stage *stage) {
  double elements = 0;
  for (size_t i = 0; i < params->count; i++) {
    const ad_param_spec *spec = &params->list[i];
    double share = spec->shape.ndim == 3 ? d->expert_share : 1;
    int is_looked_up = stage && stage->is_first && i == d->embedding.table;
    if (spec->shape.ndim >= 2 && !is_looked_up) elements += share * (double)ad_shape_numel(&spec->shape);
  }
  return elements;
}

/* Returns how many matrix elements would cost a token as much as the products of causal attention do. On average a
 * position attends to half of the sequence. */
static double attention_elements(const ad_decoder *d, int64_t seq) {
  return (double)(d->options->heads * ad_decoder_head_dim(d->options) * seq);
}

/* ---- dividing the decoder into stages of a pipeline ---- */

/* Divides the layers into stages of similar cost. All blocks cost the same, so one block is declared here, only to find
 * that cost. */
static ad_status cut_layers(ad_decoder *d, const ad_mesh *mesh, int64_t *out) {
  ad_declarations block = ad_declarations_on(mesh);
  declare_block(d, &block, 0);
  ad_status status = block.status;
  double cost = elements_of(d, &block, NULL) + attention_elements(d, d->options->data.seq);
  ad_declarations_release(&block);
  if (!status) ad_cut_layers(d->options->layers, cost, head_elements(d), d->stage_count, out);
  return status;
}

static ad_status set_stages(ad_decoder *d, const int64_t *layers) {
  int64_t first = 0;
  AD_TRY(ad_new(d->stage_count, &d->stages));
  for (size_t s = 0; s < d->stage_count; s++) {
    d->stages[s] =
        (ad_decoder_stage){.blocks = {first, layers[s]}, .is_first = s == 0, .is_last = s + 1 == d->stage_count};
    first += layers[s];
  }
  d->stage = d->stages;
  return AD_OK;
}

static ad_status find_stages(ad_decoder *d, const ad_program_setting *setting, const ad_mesh *mesh) {
  int64_t *layers;
  if (d->stage_count == 1) return set_stages(d, &d->options->layers);
  if (setting->stage_layer_count) return set_stages(d, setting->stage_layers);
  AD_TRY(ad_new(d->stage_count, &layers));
  ad_status status = cut_layers(d, mesh, layers);
  if (!status) status = set_stages(d, layers);
  ad_release(layers);
  return status;
}

static ad_status declare_stage(ad_decoder *d, size_t number, ad_declarations *to) {
  ad_decoder_stage *stage = &d->stages[number];
  if (stage->is_first) declare_embedding(d, to);
  for (int64_t i = 0; i < stage->blocks.count; i++) {
    to->unit++;
    declare_block(d, to, stage->blocks.first + i);
  }
  to->unit++;
  if (stage->is_last) declare_head(d, to);
  AD_TRY(to->status);
  stage->param_count = to->count;
  stage->state_count = to->state_count;
  if (number) stage->first_state = stage[-1].first_state + stage[-1].state_count;
  stage->product_elements = elements_of(d, to, stage) + (stage->is_last && d->options->tied ? head_elements(d) : 0);
  return AD_OK;
}

/* Allocates the lists `leaves`, for the stage with the most parameters, and `states`, for all stages. */
static ad_status make_lists(ad_decoder *d) {
  const ad_decoder_stage *last = &d->stages[d->stage_count - 1];
  size_t most = 0;
  for (size_t s = 0; s < d->stage_count; s++) most = d->stages[s].param_count > most ? d->stages[s].param_count : most;
  AD_TRY(ad_new(most, &d->leaves));
  return ad_new(last->first_state + last->state_count, &d->states);
}

/* ---- creating and releasing a decoder ---- */

static ad_status begin_decoder(ad_decoder *d, const ad_decoder_options *options, const ad_branch *branch,
                               void *branch_own, double expert_share) {
  d->options = options;
  d->branch = branch;
  d->branch_own = branch_own;
  d->expert_share = expert_share;
  d->parallel = (ad_parallel){options->sequence_parallel, options->convert_norms, options->gather_keys};
  d->output_factor = 1 / sqrt(2.0 * (double)options->layers);  // each layer adds 2 branches to the stream
  return ad_new((size_t)options->layers, &d->blocks);
}

ad_status ad_decoder_declare(ad_decoder *d, const ad_decoder_options *options, const ad_branch *branch,
                             void *branch_own, double expert_share, ad_declarations *to) {
  AD_TRY(begin_decoder(d, options, branch, branch_own, expert_share));
  d->stage_count = 1;
  AD_TRY(set_stages(d, &options->layers));
  AD_TRY(declare_stage(d, 0, to));
  return make_lists(d);
}

static ad_status add_stage(ad_decoder *d, size_t stage, const char *name, size_t module, ad_program *to) {
  ad_declarations params = ad_declarations_on(ad_program_mesh(to, module));
  ad_status status = declare_stage(d, stage, &params);
  if (status)
    ad_declarations_release(&params);
  else
    status = ad_program_add_declared(to, name, NULL, &params);
  return status;
}

static ad_status add_layers(const ad_decoder *d, ad_program *to) {
  char name[AD_PARAM_NAME_SIZE];
  for (int64_t i = 0; d->layer_prefix && i < d->options->layers; i++)
    AD_TRY(ad_program_add_layer(to, layer_name(d, i, name)));
  return AD_OK;
}

ad_status ad_decoder_create(ad_decoder *d, const ad_decoder_options *options, const ad_branch *branch, void *branch_own,
                            double expert_share, const char *name, size_t module, ad_program *to) {
  AD_TRY(begin_decoder(d, options, branch, branch_own, expert_share));
  d->stage_count = ad_program_stage_count(to);
  AD_TRY(find_stages(d, ad_program_setting_of(to), ad_program_mesh(to, module)));
  for (size_t s = 0; s < d->stage_count; s++) AD_TRY(add_stage(d, s, name, module + s, to));
  AD_TRY(add_layers(d, to));
  return make_lists(d);
}

void ad_decoder_release(ad_decoder *d) {
  ad_release(d->blocks);
  ad_release(d->stages);
  ad_release(d->leaves);
  ad_release(d->states);
}

int ad_decoder_gives_table(const ad_decoder *d) { return d->options->tied && d->stage_count > 1; }

ad_layout ad_decoder_stream_layout(const ad_decoder *d, const ad_mesh *mesh) {
  ad_layout layout = ad_text_batch_layout(mesh);
  if (d->parallel.sequence) ad_tp_type(&layout, AD_S(1));
  return layout;
}

// Returns the operations of one stage for `samples` samples of `seq` tokens. A matrix product takes 2 operations for
// each element and position in forward, and 4 in backward.
double ad_decoder_stage_flops(const ad_decoder *d, size_t stage, int64_t seq, int64_t samples) {
  const ad_decoder_stage *of = &d->stages[stage];
  double elements = of->product_elements + (double)of->blocks.count * attention_elements(d, seq);
  return 6.0 * elements * (double)seq * (double)samples;
}

double ad_decoder_flops(const ad_decoder *d, int64_t seq, int64_t samples) {
  double flops = 0;
  for (size_t s = 0; s < d->stage_count; s++) flops += ad_decoder_stage_flops(d, s, seq, samples);
  return flops;
}
