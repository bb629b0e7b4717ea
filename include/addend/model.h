/* Whole models as a list of parameters and a loss. A model only says what each parameter is and how it is laid out for
 * computing; memory, storage and reductions are made from that. */
#ifndef ADDEND_MODEL_H
#define ADDEND_MODEL_H
#include "addend/parameter.h"
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_gpt_options {
  size_t size; /* sizeof(ad_gpt_options) */
  int64_t layers, d_model, heads;
  int64_t d_hidden;   /* of the MLP; 0: 8/3 d_model rounded up to a multiple of 16 */
  int64_t vocabulary; /* 0: 256 */
  int64_t seq;
  int tied;           /* 1: the head is the embedding */
  double rotary_base; /* 0: 10000 */
} ad_gpt_options;

typedef struct ad_model ad_model;
/* A decoder: embedding, `layers` blocks of (RMSNorm, rotary causal attention, RMSNorm, SwiGLU), RMSNorm, head.
 * Parameters are R on dp and cp, I on the other axes that the mesh names. AD_INVALID names every number that does not
 * fit. Borrows the mesh. */
AD_API AD_CHECKED ad_status ad_gpt_create(const ad_mesh *mesh, const ad_gpt_options *options, ad_model **out);
AD_API void ad_model_destroy(ad_model *model);
AD_API size_t ad_model_param_count(const ad_model *model);
AD_API const ad_param_spec *ad_model_param(const ad_model *model, size_t index); /* in the order of the forward pass */
/* The layout of a batch's tokens and targets [batch, seq]: S(0) on dp. */
AD_API const ad_layout *ad_model_batch_layout(const ad_model *model);
/* Runs the forward pass on a tape and returns the loss numerator, a P scalar on dp. values[i] holds parameter i in its
 * compute layout; tokens, targets: i32 [batch, seq]. */
AD_API ad_tensor *ad_model_loss(ad_model *model, ad_tape *tape, const ad_array *const *values, const ad_array *tokens,
                                const ad_array *targets);
/* Floating point operations of the matrix products of one forward and backward pass over `rows` sequences. */
AD_API double ad_model_flops(const ad_model *model, int64_t rows);

#if defined(__cplusplus)
}
#endif
#endif
