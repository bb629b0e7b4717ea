/* The normalisation layer. */
#include "nn/layers.h"

static const double epsilon = 1e-5;

ad_norm_layer ad_norm_declare(ad_declarations *to, const char *path, const char *name, int64_t d_model) {
  ad_param_spec weight = {
      .shape = {1, {d_model}}, .layout = to->replicated, .sharded = AD_AXES(AD_DP_SHARD), .mean = 1};
  return (ad_norm_layer){ad_declare_param(to, path, name, weight)};
}

ad_tensor *ad_norm_forward(ad_tape *t, ad_tensor *const *params, const ad_norm_layer *layer, ad_tensor *x) {
  return ad_rms_norm(t, x, params[layer->weight], epsilon);
}
