/* The SwiGLU multilayer perceptron: gate and up sharded by columns over tp, down by rows. */
#include "nn/parallel.h"

ad_mlp_layer ad_mlp_declare(ad_declarations *to, const char *path, const ad_mlp_shape *shape) {
  ad_linear_shape in = {.in = shape->d_model,
                        .out = shape->d_hidden,
                        .sharding = AD_SHARD_COLUMNS,
                        .has_bias = shape->has_bias,
                        .deviation = ad_deviation_keeping_size(shape->d_model)};
  ad_linear_shape out = {.in = shape->d_hidden,
                         .out = shape->d_model,
                         .sharding = AD_SHARD_ROWS,
                         .has_bias = shape->has_bias,
                         .deviation = ad_deviation_keeping_size(shape->d_hidden) * shape->output_factor};
  ad_mlp_layer layer = {.parallel = shape->parallel};
  layer.gate = ad_linear_declare(to, path, "gate", &in);
  layer.up = ad_linear_declare(to, path, "up", &in);
  layer.down = ad_linear_declare(to, path, "down", &out);
  return layer;
}

ad_tensor *ad_mlp_products(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x) {
  ad_tensor *gate = ad_linear_forward(t, params, &layer->gate, x);  // S2 on tp
  ad_tensor *up = ad_linear_forward(t, params, &layer->up, x);
  return ad_linear_forward(t, params, &layer->down, ad_swiglu(t, gate, up));
}

ad_tensor *ad_mlp_forward(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x) {
  x = ad_tp_enter(t, x, layer->parallel);  // R on tp
  return ad_tp_leave(t, ad_mlp_products(t, params, layer, x), layer->parallel);
}
