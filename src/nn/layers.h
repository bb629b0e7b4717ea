/* Layers as formulas over numbered parameters: a layer is a few parameter numbers, `declare` adds them to a model's
 * list and `forward` is its formula. `params[i]` is parameter i's leaf on the tape; x is [batch, seq, d_model]. */
#ifndef NN_LAYERS_H
#define NN_LAYERS_H
#include "nn/declare.h"

/* y = x W, W [in, out]. */
typedef struct ad_linear_layer {
  size_t weight;
} ad_linear_layer;
ad_linear_layer ad_linear_declare(ad_declarations *to, const char *path, const char *name, int64_t in, int64_t out,
                                  double deviation);
ad_tensor *ad_linear_forward(ad_tape *t, ad_tensor *const *params, const ad_linear_layer *layer, ad_tensor *x);

/* Rows of a table [vocabulary, d_model]; as a tied head, products with them. */
typedef struct ad_embedding_layer {
  size_t table;
} ad_embedding_layer;
ad_embedding_layer ad_embedding_declare(ad_declarations *to, const char *path, int64_t vocabulary, int64_t d_model,
                                        double deviation);
ad_tensor *ad_embedding_forward(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                ad_tensor *tokens);
ad_tensor *ad_embedding_logits(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer, ad_tensor *x);

/* RMSNorm. */
typedef struct ad_norm_layer {
  size_t weight;
} ad_norm_layer;
ad_norm_layer ad_norm_declare(ad_declarations *to, const char *path, const char *name, int64_t d_model);
ad_tensor *ad_norm_forward(ad_tape *t, ad_tensor *const *params, const ad_norm_layer *layer, ad_tensor *x);

/* Causal attention with rotary positions: attention(rotary(x Wq), rotary(x Wk), x Wv) Wo. */
typedef struct ad_attention_layer {
  ad_linear_layer wq, wk, wv, wo;
  int64_t head_dim;
  double rotary_base;
} ad_attention_layer;
ad_attention_layer ad_attention_declare(ad_declarations *to, const char *path, int64_t d_model, int64_t heads,
                                        double rotary_base, double output_factor);
ad_tensor *ad_attention_forward(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, ad_tensor *x);

/* swiglu(x Wgate, x Wup) Wdown. */
typedef struct ad_mlp_layer {
  ad_linear_layer gate, up, down;
} ad_mlp_layer;
ad_mlp_layer ad_mlp_declare(ad_declarations *to, const char *path, int64_t d_model, int64_t d_hidden,
                            double output_factor);
ad_tensor *ad_mlp_forward(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);

/* The deviation at which a product with a matrix of `in` rows keeps the size of its input. */
double ad_deviation_keeping_size(int64_t in);

#endif
