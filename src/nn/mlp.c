/* The SwiGLU multilayer perceptron. */
#include "nn/layers.h"

ad_mlp_layer ad_mlp_declare(ad_declarations *to, const char *path, int64_t d_model, int64_t d_hidden,
                            double output_factor) {
  double deviation = ad_deviation_keeping_size(d_model);
  ad_mlp_layer layer;
  layer.gate = ad_linear_declare(to, path, "gate", d_model, d_hidden, deviation);
  layer.up = ad_linear_declare(to, path, "up", d_model, d_hidden, deviation);
  layer.down =
      ad_linear_declare(to, path, "down", d_hidden, d_model, ad_deviation_keeping_size(d_hidden) * output_factor);
  return layer;
}

ad_tensor *ad_mlp_forward(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x) {
  ad_tensor *gate = ad_linear_forward(t, params, &layer->gate, x);
  ad_tensor *up = ad_linear_forward(t, params, &layer->up, x);
  return ad_linear_forward(t, params, &layer->down, ad_swiglu(t, gate, up));
}
