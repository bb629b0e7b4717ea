/* The linear layer, and the deviation that matrices start from. */
#include <math.h>
#include "nn/layers.h"

double ad_deviation_keeping_size(int64_t in) { return 1 / sqrt((double)in); }

ad_linear_layer ad_linear_declare(ad_declarations *to, const char *path, const char *name, int64_t in, int64_t out,
                                  double deviation) {
  ad_param_spec weight = {.shape = {2, {in, out}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .decays = 1,
                          .deviation = deviation};
  return (ad_linear_layer){ad_declare_param(to, path, name, weight)};
}

ad_tensor *ad_linear_forward(ad_tape *t, ad_tensor *const *params, const ad_linear_layer *layer, ad_tensor *x) {
  return ad_linear(t, x, params[layer->weight]);
}
