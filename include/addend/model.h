/* What the program `gpt` computes. */
#ifndef ADDEND_MODEL_H
#define ADDEND_MODEL_H
#include "addend/data.h"
#include "addend/program.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A decoder of bytes: embedding, `layers` blocks of (RMSNorm, rotary causal attention, RMSNorm, SwiGLU), RMSNorm, head.
 * Parameters are R on dp and cp, I on the other axes that the mesh names. */
typedef struct ad_gpt_options {
  int64_t layers, d_model, heads;
  int64_t d_hidden;   /* of the MLP; 0: 8/3 d_model rounded up to a multiple of 16 */
  int tied;           /* 1: the head is the embedding */
  double rotary_base; /* slowest rotation of the positions */
  ad_text_options data;
} ad_gpt_options;

/* The kind "gpt": one module, "model"; one phase; one loss, "cross_entropy", over one count, "tokens". */
AD_API const ad_program_kind *ad_gpt(void);

#if defined(__cplusplus)
}
#endif
#endif
