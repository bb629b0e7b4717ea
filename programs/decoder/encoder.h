/* An encoder: a matrix from the input to the encoder's width, blocks in which every position attends to all others, a
 * norm, and a matrix to the output's width. */
#ifndef DECODER_ENCODER_H
#define DECODER_ENCODER_H
#include "addend/layers.h"
#include "addend/program.h"

typedef struct ad_encoder_block {
  ad_norm_layer attention_norm, mlp_norm;
  ad_attention_layer attention;
  ad_mlp_layer mlp;
} ad_encoder_block;

typedef struct ad_encoder_shape {
  const char *name;           /* name of the encoder's module */
  const char *input, *output; /* names of the two matrices: [in, d_model], [d_model, out] */
  int64_t in, out, layers, d_model, d_hidden, heads;
  double rotary_base;
  const char *norm_group; /* norm group of the encoder's module: modules of one group share a gradient norm */
} ad_encoder_shape;

typedef struct ad_encoder {
  ad_encoder_shape shape;
  size_t input, output; /* indices of the two matrices in the module's list of parameters */
  ad_encoder_block *blocks;
  ad_norm_layer final_norm;
  size_t param_count;
  ad_tensor **leaves;
  double product_elements; /* elements of all matrices that a position is multiplied with */
} ad_encoder;

/* Adds the encoder's module on the program's mesh with index `module`. Borrows the names in `shape`. */
ad_status ad_encoder_create(ad_encoder *encoder, const ad_encoder_shape *shape, size_t module,
                            ad_program *to) AD_CHECKED;
void ad_encoder_release(ad_encoder *encoder);
/* In a phase of the encoder's module, computes the output [batch, n, out] (S0 on dp, I on other axes) from x [batch, n,
 * in] (S0 on dp, S1 on cp, I on tp). */
ad_tensor *ad_encoder_forward(ad_encoder *encoder, ad_phase_run *at, ad_tensor *x);

#endif
