/* The linear layer, and the standard deviation of the initial values of matrices. */
#include <math.h>
#include <stdio.h>
#include "nn/parallel.h"

double ad_deviation_keeping_size(int64_t in) { return 1 / sqrt((double)in); }

static ad_type type_of_weight(ad_linear_sharding sharding) {
  if (sharding == AD_SHARD_COLUMNS) return AD_S(1);
  return sharding == AD_SHARD_ROWS ? AD_S(0) : AD_R;
}

static size_t declare_bias(ad_declarations *to, const char *path, const char *name, const ad_linear_shape *shape) {
  char full[AD_PARAM_NAME_SIZE];
  ad_param_spec bias = {.size = sizeof bias,
                        .shape = {1, {shape->out}},
                        .layout = to->replicated,
                        .sharded = AD_AXES(AD_DP_SHARD),
                        .deviation = 0};
  ad_tp_type(&bias.layout, shape->sharding == AD_SHARD_COLUMNS ? AD_S(0) : AD_R);
  snprintf(full, sizeof full, "%s_bias", name);
  return ad_declare_param(to, path, full, bias);
}

ad_linear_layer ad_linear_declare(ad_declarations *to, const char *path, const char *name,
                                  const ad_linear_shape *shape) {
  ad_linear_layer layer = {.sharding = shape->sharding, .has_bias = shape->has_bias};
  ad_param_spec weight = {.size = sizeof weight,
                          .shape = {2, {shape->in, shape->out}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .decays = 1,
                          .deviation = shape->deviation};
  ad_tp_type(&weight.layout, type_of_weight(shape->sharding));
  layer.weight = ad_declare_param(to, path, name, weight);
  if (layer.has_bias) layer.bias = declare_bias(to, path, name, shape);
  return layer;
}

ad_tensor *ad_linear_forward(ad_tape *t, ad_tensor *const *params, const ad_linear_layer *layer, ad_tensor *x) {
  const ad_stand_in *instead = layer->stand_in;
  ad_tensor *w = params[layer->weight];
  ad_tensor *y = instead ? instead->product(instead->own, t, layer->weight, x, w) : ad_linear(t, x, w);
  if (!layer->has_bias) return y;
  ad_tensor *bias = params[layer->bias];
  if (layer->sharding == AD_SHARD_ROWS) bias = ad_tp_once(t, bias);  // y is P on tp, so only one rank adds the bias
  return ad_add_row(t, y, bias);
}
