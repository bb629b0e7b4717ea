/* The normalisation layer. If its input is I on tp, the weight is I, too, because all ranks do the same work. If its
 * input is sharded along the sequence, each rank has an addend of the weight's gradient, from its own rows. Then either
 * the weight is R and the reducer sums (law 4), or the weight is I, and each use converts it I->R with a backward that
 * sums. */
#include "nn/parallel.h"

ad_norm_layer ad_norm_declare(ad_declarations *to, const char *path, const char *name, int64_t d_model,
                              ad_parallel parallel) {
  ad_norm_layer layer = {.converts = parallel.sequence && parallel.converts};
  ad_param_spec weight = {.size = sizeof weight,
                          .shape = {1, {d_model}},
                          .layout = to->replicated,
                          .sharded = AD_AXES(AD_DP_SHARD),
                          .mean = 1};
  ad_tp_type(&weight.layout, parallel.sequence && !parallel.converts ? AD_R : AD_I);
  layer.weight = ad_declare_param(to, path, name, weight);
  return layer;
}

ad_tensor *ad_norm_forward(ad_tape *t, ad_tensor *const *params, const ad_norm_layer *layer, ad_tensor *x) {
  ad_tensor *weight = params[layer->weight];
  if (layer->converts) weight = ad_tp_use(t, weight);
  return ad_rms_norm(t, x, weight, layer->epsilon > 0 ? layer->epsilon : AD_NORM_EPSILON);
}
