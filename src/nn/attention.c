/* The attention layer: projections around the attention operation. */
#include "nn/layers.h"

ad_attention_layer ad_attention_declare(ad_declarations *to, const char *path, int64_t d_model, int64_t heads,
                                        double rotary_base, double output_factor) {
  double deviation = ad_deviation_keeping_size(d_model);
  ad_attention_layer layer = {.head_dim = d_model / heads, .rotary_base = rotary_base};
  layer.wq = ad_linear_declare(to, path, "wq", d_model, d_model, deviation);
  layer.wk = ad_linear_declare(to, path, "wk", d_model, d_model, deviation);
  layer.wv = ad_linear_declare(to, path, "wv", d_model, d_model, deviation);
  layer.wo = ad_linear_declare(to, path, "wo", d_model, d_model, deviation * output_factor);
  return layer;
}

ad_tensor *ad_attention_forward(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, ad_tensor *x) {
  ad_tensor *q = ad_linear_forward(t, params, &layer->wq, x);
  ad_tensor *k = ad_linear_forward(t, params, &layer->wk, x);
  ad_tensor *v = ad_linear_forward(t, params, &layer->wv, x);
  q = ad_rotary(t, q, layer->head_dim, layer->rotary_base);
  k = ad_rotary(t, k, layer->head_dim, layer->rotary_base);
  return ad_linear_forward(t, params, &layer->wo, ad_attention(t, q, k, v, layer->head_dim));
}
