/* The encoder: blocks of attention and MLP in which every position attends to all others. */
#include "decoder/encoder.h"

#include <math.h>
#include <stdio.h>
#include "addend/helpers.h"
#include "addend/layers.h"

static const ad_parallel plain = {0};

/* ---- declaring the encoder's parameters ---- */

/* Declares a matrix that all ranks of tp have as identical replicas and use in the same way. */
static size_t declare_matrix(ad_declarations *to, const char *name, int64_t in, int64_t out) {
  ad_param_spec matrix = {.size = sizeof matrix,
                          .shape = {2, {in, out}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .decays = 1,
                          .deviation = ad_deviation_keeping_size(in)};
  return ad_declare_param(to, name, "weight", matrix);
}

static void declare_block(ad_encoder *e, ad_declarations *to, int64_t index) {
  const ad_encoder_shape *shape = &e->shape;
  ad_encoder_block *b = &e->blocks[index];
  double factor = 1 / sqrt(2.0 * (double)shape->layers);  // each layer adds 2 branches to the stream
  ad_attention_shape attention = {.d_model = shape->d_model,
                                  .heads = shape->heads,
                                  .kv_heads = shape->heads,
                                  .rotary_base = shape->rotary_base,
                                  .output_factor = factor,
                                  .sees_all = 1,
                                  .parallel = plain};
  ad_mlp_shape mlp = {.d_model = shape->d_model, .d_hidden = shape->d_hidden, .output_factor = factor};
  char norm_path[64], attention_path[64], mlp_path[64];
  snprintf(norm_path, sizeof norm_path, "blocks.%lld.norm", (long long)index);
  snprintf(attention_path, sizeof attention_path, "blocks.%lld.attn", (long long)index);
  snprintf(mlp_path, sizeof mlp_path, "blocks.%lld.mlp", (long long)index);
  b->attention_norm = ad_norm_declare(to, norm_path, "attn", shape->d_model, plain);
  b->attention = ad_attention_declare(to, attention_path, &attention);
  b->mlp_norm = ad_norm_declare(to, norm_path, "mlp", shape->d_model, plain);
  b->mlp = ad_mlp_declare(to, mlp_path, &mlp);
}

static void declare(ad_encoder *e, ad_declarations *to) {
  const ad_encoder_shape *shape = &e->shape;
  e->input = declare_matrix(to, shape->input, shape->in, shape->d_model);
  for (int64_t i = 0; i < shape->layers; i++) {
    to->unit++;
    declare_block(e, to, i);
  }
  to->unit++;
  e->final_norm = ad_norm_declare(to, "final.norm", "weight", shape->d_model, plain);
  e->output = declare_matrix(to, shape->output, shape->d_model, shape->out);
}

static void count_products(ad_encoder *e, const ad_declarations *params) {
  e->param_count = params->count;
  for (size_t i = 0; i < params->count; i++)
    if (params->list[i].shape.ndim == 2) e->product_elements += (double)ad_shape_numel(&params->list[i].shape);
}

/* Returns the block's name as a layer that may run again: its module's, and its own. */
static const char *layer_name(const ad_encoder *e, int64_t block, char name[AD_PARAM_NAME_SIZE]) {
  snprintf(name, AD_PARAM_NAME_SIZE, "%s.blocks.%lld", e->shape.name, (long long)block);
  return name;
}

static ad_status add_layers(const ad_encoder *e, ad_program *to) {
  char name[AD_PARAM_NAME_SIZE];
  for (int64_t i = 0; i < e->shape.layers; i++) AD_TRY(ad_program_add_layer(to, layer_name(e, i, name)));
  return AD_OK;
}

static ad_status add_module(ad_encoder *e, size_t module, ad_program *to) {
  ad_declarations params = ad_declarations_on(ad_program_mesh(to, module));
  declare(e, &params);
  count_products(e, &params);
  return ad_program_add_declared(to, e->shape.name, e->shape.norm_group, &params);
}

ad_status ad_encoder_create(ad_encoder *e, const ad_encoder_shape *shape, size_t module, ad_program *to) {
  e->shape = *shape;
  AD_TRY(ad_new((size_t)shape->layers, &e->blocks));
  AD_TRY(add_module(e, module, to));
  AD_TRY(add_layers(e, to));
  return ad_new(e->param_count, &e->leaves);
}

void ad_encoder_release(ad_encoder *e) {
  ad_release(e->blocks);
  ad_release(e->leaves);
}

/* ---- the forward pass ---- */

static ad_tensor *block_forward(const ad_encoder *e, ad_tape *t, int64_t index, ad_tensor *x) {
  const ad_encoder_block *b = &e->blocks[index];
  ad_tensor *const *params = e->leaves;
  x = ad_add(t, x, ad_attention_forward(t, params, &b->attention, ad_norm_forward(t, params, &b->attention_norm, x)));
  return ad_add(t, x, ad_mlp_forward(t, params, &b->mlp, ad_norm_forward(t, params, &b->mlp_norm, x)));
}

/* Gathers all positions on every rank if cp shards them, because later layers need every position. */
static ad_tensor *full(ad_tape *t, ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  int has_cp = array && (ad_mesh_named(array->layout.mesh) & AD_AXES(AD_CP));
  return has_cp ? ad_all_gather(t, x, "cp", AD_I) : x;
}

ad_tensor *ad_encoder_forward(ad_encoder *e, ad_phase_run *at, ad_tensor *x) {
  ad_tape *t = ad_phase_tape(at);
  for (size_t i = 0; i < e->param_count; i++) e->leaves[i] = ad_parameter(t, ad_phase_parameters(at), i);
  x = ad_to_dtype(t, ad_linear(t, x, e->leaves[e->input]), ad_tape_residual(t));
  const ad_tensor *first = x;
  for (int64_t i = 0; i < e->shape.layers; i++) {
    const ad_tensor *enters = x;
    char layer[AD_PARAM_NAME_SIZE];
    x = block_forward(e, t, i, x);
    ad_forget(first, x);
    ad_recompute(enters, x, layer_name(e, i, layer));
  }
  x = ad_norm_forward(t, e->leaves, &e->final_norm, x);
  return full(t, ad_linear(t, x, e->leaves[e->output]));
}
