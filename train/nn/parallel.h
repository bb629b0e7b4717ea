/* How layers compute inside a region where activations are R or Partial on `tp`: the weights of norms, biases, and the
 * MLP's products. */
#ifndef NN_PARALLEL_H
#define NN_PARALLEL_H
#include "addend/layers.h"

/* Converts a weight from I to R on `tp`, for use where the sequence is sharded over `tp`. The backward of the
 * conversion sums the weight's gradient. */
ad_tensor *ad_tp_use_at(ad_tape *t, ad_tensor *weight, const char *site);
/* Prepares an R bias for the addition to a P value: only one rank's replica counts (`once`). */
ad_tensor *ad_tp_once_at(ad_tape *t, ad_tensor *bias, const char *site);
/* Returns the products of the MLP without ad_tp_enter and ad_tp_leave: x is R on tp, the result is P on tp. */
ad_tensor *ad_mlp_products(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);
#define ad_tp_use(t, weight) ad_tp_use_at((t), (weight), AD_HERE)
#define ad_tp_once(t, bias) ad_tp_once_at((t), (bias), AD_HERE)

#endif
