/* The options and formulas of the decoder on which gpt, moe and ocr are built, and which decompose explains. */
#ifndef DECODER_OPTIONS_H
#define DECODER_OPTIONS_H
#include "addend/program.h"
#include "addend/data.h"

/* Which matrix products have biases, in the order of the words of the recipe key model.bias. */
typedef enum ad_bias {
  AD_BIAS_NONE,
  AD_BIAS_QKV,       /* the products with wq, wk, wv, as in Qwen2 */
  AD_BIAS_ATTENTION, /* the products with wq, wk, wv and wo, as with Llama's attention_bias */
  AD_BIAS_MLP,       /* only the products with gate, up and down */
  AD_BIAS_ALL
} ad_bias;

/* A decoder of tokens. These formulas are complete: a program that follows them gets the same numbers. No dropout.
 *
 *   x = embedding.weight[token]                                     [batch, seq, d_model]
 *   in each block i:  x = x + attention(norm(x; blocks.i.norm.attn))
 *                     x = x + mlp(norm(x; blocks.i.norm.mlp))
 *   logits = norm(x; final.norm.weight) head.weight, or, tied (the default of recipes),
 *            norm(x; final.norm.weight) times embedding.weight transposed
 *
 *   norm(x; w)   = w * x / sqrt(mean(x^2) + norm_epsilon), over d_model (RMSNorm)
 *   attention(x) = (softmax(q k^T / sqrt(head_dim)) v) wo, head by head, each token seeing itself and those before it;
 *                  q = rotary(x wq), k = rotary(x wk), v = x wv; head h has columns [h, h + 1) * head_dim of q, and of
 *                  k and v those of head floor(h * kv_heads / heads); where head_dim is 0 it is d_model / heads
 *                  with qk_norm: q = rotary(norm(x wq; q_norm)), k = rotary(norm(x wk; k_norm)), the norm over each
 *                  head's head_dim elements
 *   rotary       rotates pairs (j, j + head_dim / 2) of a head by position * f_j, f_j = rotary_base^(-2 j / head_dim),
 *                positions from 0: (a, b) becomes (a cos - b sin, a sin + b cos)
 *                with rotary_scaling [factor, low, high, original], f_j makes n = original * f_j / (2 pi) turns in
 *                `original` positions; f_j stays if n > high, becomes f_j / factor if n < low, and in between
 *                (1 - s) f_j / factor + s f_j, s = (n - low) / (high - low) ("llama3" of Hugging Face Transformers)
 *   mlp(x)       = (silu(x gate) * (x up)) down (SwiGLU)
 *   bias         added to the products with wq, wk, wv (qkv), with these and wo (attention), with gate, up, down (mlp),
 *                or with all seven (all)
 *
 * Matrices are [in, out], for a row vector times a matrix. PyTorch's Linear has the transpose, and a square matrix that
 * was not transposed fits unnoticed. Weights that a recipe names (model.weights) have exactly these tensors. Columns:
 * name, shape, standard deviation of the initial values (normal around 0), layout on tp:
 *
 *   embedding.weight                     [vocabulary, d_model]  1 / sqrt(d_model)                       S0
 *   blocks.i.norm.attn, .norm.mlp        [d_model]              all 1                                   I, or (1)
 *   blocks.i.attn.wq                     [d_model, q_width]     1 / sqrt(d_model)                       S1
 *   blocks.i.attn.wk, .wv                [d_model, kv_width]    1 / sqrt(d_model)                       S1, or (2)
 *   blocks.i.attn.wo                     [q_width, d_model]     1 / sqrt(q_width) / sqrt(2 layers)      S0
 *   blocks.i.attn.q_norm, .k_norm        [head_dim]             all 1, with qk_norm                     R
 *   blocks.i.mlp.gate, .up               [d_model, d_hidden]    1 / sqrt(d_model)                       S1
 *   blocks.i.mlp.down                    [d_hidden, d_model]    1 / sqrt(d_hidden) / sqrt(2 layers)     S0
 *   wq_bias, wk_bias, wv_bias, gate_bias, up_bias beside their matrices: [out], all 0, with bias        S0, or (2)
 *   wo_bias, down_bias                   [d_model]              all 0, with bias                        R
 *   final.norm.weight                    [d_model]              all 1                                   I, or (1)
 *   head.weight (not if tied)            [d_model, vocabulary]  1 / sqrt(d_model)                       S1
 *
 *   q_width = heads * head_dim, kv_width = kv_heads * head_dim
 *   (1) with sequence_parallel: R, or, with convert_norms too, I and converted at each use
 *   (2) R if tp does not divide kv_heads
 *
 * Element e of a value, counted row by row, is deviation * sqrt(-2 ln(1 - u)) cos(2 pi v), with u and v the first 53
 * bits, as fractions, of the two 64-bit numbers of the draw (seed, stream XXH64(name), index e) that data.h describes.
 * The name is as in this list, without a module's name: in programs with several modules, parameters of the same name
 * and shape begin with the same values.
 *
 * The loss is cross-entropy, summed over the counted tokens of the step and divided by their number. Weight decay
 * applies to all matrices except embedding.weight. Parameters are R on dp and cp. The batch is S0 on dp and S1z on cp;
 * the residual stream is I on tp or, with sequence_parallel, S1 (core/docs/types.md). */
typedef struct ad_decoder_options {
  int64_t layers, d_model, heads;
  int tied;                             /* 1 (the default of recipes): the head is the embedding */
  double rotary_base;                   /* base of the frequencies with which positions are rotated */
  int64_t kv_heads;                     /* heads of k and v; 0: as many as of q */
  int qk_norm;                          /* 1: each head's queries and keys are normalised */
  int bias;                             /* which products have biases: an ad_bias */
  int sequence_parallel, convert_norms; /* decide the layout of the norms and of the residual stream on tp */
  int gather_keys;                      /* 1: keys and values are gathered over cp; 0: they are sent around a ring of
                                         * cp's ranks */
  ad_text_options data;
  double norm_epsilon;    /* added to the mean square in every norm; above 0 */
  int64_t head_dim;       /* elements of a head, even; 0: d_model / heads */
  int64_t vocabulary;     /* rows of embedding and columns of head; 0 (always in ocr and decompose):
                           * AD_VOCABULARY_BYTES */
  double *rotary_scaling; /* factor, low_freq_factor, high_freq_factor, original positions; NULL: none */
  size_t rotary_scaling_count;
} ad_decoder_options;

#endif
