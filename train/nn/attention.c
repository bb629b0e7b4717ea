/* The attention layer: projections around the attention operation. tp shards the heads, cp the sequence. */
#include "addend/layers.h"
#include "nn/kept.h"

/* Returns how the matrices of keys and values are sharded: not at all if tp does not divide the number of heads of k
 * and v, so that every rank has all of these heads. */
static ad_linear_sharding sharding_of_kv(const ad_declarations *to, int64_t kv_heads) {
  return kv_heads % ad_mesh_axis_size(to->replicated.mesh, AD_TP) ? AD_SHARD_NOTHING : AD_SHARD_COLUMNS;
}

/* Declares a norm's weight [head_dim], which all heads share. Over tp its type is R: each rank has an addend of the
 * weight's gradient, from its own heads. */
static size_t declare_head_norm(ad_declarations *to, const char *path, const char *name, int64_t head_dim) {
  ad_param_spec weight = {.size = sizeof weight,
                          .shape = {1, {head_dim}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .mean = 1};
  ad_tp_type(&weight.layout, AD_R);
  return ad_declare_param(to, path, name, weight);
}

static void declare_head_norms(ad_declarations *to, const char *path, ad_attention_layer *layer) {
  layer->q_norm = declare_head_norm(to, path, "q_norm", layer->head_dim);
  layer->k_norm = declare_head_norm(to, path, "k_norm", layer->head_dim);
}

ad_attention_layer ad_attention_declare(ad_declarations *to, const char *path, const ad_attention_shape *shape) {
  ad_attention_layer layer = {.has_norms = shape->has_norms,
                              .sees_all = shape->sees_all,
                              .head_dim = shape->head_dim ? shape->head_dim : shape->d_model / shape->heads,
                              .rotary_base = shape->rotary_base,
                              .parallel = shape->parallel,
                              .norm_epsilon = shape->norm_epsilon > 0 ? shape->norm_epsilon : AD_NORM_EPSILON,
                              .rotary_scaling = shape->rotary_scaling};
  ad_linear_shape q = {.in = shape->d_model,
                       .out = shape->heads * layer.head_dim,
                       .sharding = AD_SHARD_COLUMNS,
                       .has_bias = shape->has_bias,
                       .deviation = ad_deviation_keeping_size(shape->d_model)};
  ad_linear_shape kv = q;
  kv.out = shape->kv_heads * layer.head_dim;
  kv.sharding = sharding_of_kv(to, shape->kv_heads);
  ad_linear_shape o = {.in = q.out,
                       .out = shape->d_model,
                       .sharding = AD_SHARD_ROWS,
                       .has_bias = shape->has_bias && !shape->has_no_output_bias,
                       .deviation = ad_deviation_keeping_size(q.out) * shape->output_factor};
  layer.wq = ad_linear_declare(to, path, "wq", &q);
  layer.wk = ad_linear_declare(to, path, "wk", &kv);
  layer.wv = ad_linear_declare(to, path, "wv", &kv);
  layer.wo = ad_linear_declare(to, path, "wo", &o);
  if (layer.has_norms) declare_head_norms(to, path, &layer);
  return layer;
}

/* Applies the head norm, if the layer has one, and rotates by position. */
static ad_tensor *positioned(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, size_t norm,
                             ad_tensor *x) {
  if (layer->has_norms) x = ad_head_norm(t, x, params[norm], layer->norm_epsilon);
  return ad_rotary_scaled(t, x, layer->head_dim, layer->rotary_base, &layer->rotary_scaling);
}

/* Gathers all keys (or values) on every rank of cp, as an alternative to the ring. Each rank then has an addend of
 * their gradient. */
static ad_tensor *gathered(ad_tape *t, const ad_attention_layer *layer, ad_tensor *x) {
  const ad_array *array = ad_tensor_array(x);
  int has_cp = array && (ad_mesh_named(array->layout.mesh) & AD_AXES(AD_CP));
  return layer->parallel.gathers_keys && has_cp ? ad_all_gather(t, x, "cp", AD_R) : x;
}

static ad_tensor *attended(ad_tape *t, const ad_attention_layer *layer, ad_tensor *q, ad_tensor *k, ad_tensor *v) {
  return layer->sees_all ? ad_attention_all(t, q, k, v, layer->head_dim) : ad_attention(t, q, k, v, layer->head_dim);
}

ad_tensor *ad_attention_continue(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, ad_tensor *x,
                                 ad_kept_keys *kept) {
  x = ad_tp_enter(t, x, layer->parallel);                      // R on tp
  ad_tensor *q = ad_linear_forward(t, params, &layer->wq, x);  // S2 on tp: heads
  ad_tensor *k = ad_linear_forward(t, params, &layer->wk, x);  // S2 on tp, or R if every rank has all heads of k and v
  ad_tensor *v = ad_linear_forward(t, params, &layer->wv, x);
  q = positioned(t, params, layer, layer->q_norm, q);
  k = gathered(t, layer, positioned(t, params, layer, layer->k_norm, k));
  v = gathered(t, layer, v);
  if (kept) k = ad_kept_rows_add(t, &kept->k, k);
  if (kept) v = ad_kept_rows_add(t, &kept->v, v);
  ad_tensor *y = ad_linear_forward(t, params, &layer->wo, attended(t, layer, q, k, v));  // P on tp
  return ad_tp_leave(t, y, layer->parallel);
}

ad_tensor *ad_attention_forward(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, ad_tensor *x) {
  return ad_attention_continue(t, params, layer, x, NULL);
}
