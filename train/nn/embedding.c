/* The embedding layer, which may also serve as the head. */
#include "addend/layers.h"

ad_embedding_layer ad_embedding_declare(ad_declarations *to, const char *path, const ad_embedding_shape *shape,
                                        ad_parallel parallel) {
  ad_param_spec table = {.size = sizeof table,
                         .shape = {2, {shape->vocabulary, shape->d_model}},
                         .layout = to->replicated,
                         .sharded = AD_AXES(AD_DP_SHARD),
                         .lasting = shape->tied,
                         .deviation = shape->deviation,
                         .matrices = {.form = AD_MATRIX_NONE}};
  ad_tp_type(&table.layout, AD_S(0));
  return (ad_embedding_layer){ad_declare_param(to, path, "weight", table), parallel};
}

ad_tensor *ad_embedding_forward(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                ad_tensor *tokens) {
  return ad_tp_leave(t, ad_embedding(t, params[layer->table], tokens), layer->parallel);
}

ad_tensor *ad_embedding_logits(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer, ad_tensor *x) {
  return ad_linear_transposed(t, x, params[layer->table]);
}
