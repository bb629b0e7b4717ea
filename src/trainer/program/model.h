/* What the programs `gpt`, `moe`, `ocr` and `decompose` compute. */
#ifndef PROGRAM_MODEL_H
#define PROGRAM_MODEL_H
#include "addend/program.h"
#include "data/lines.h"
#include "data/text.h"

/* A decoder of bytes, complete: whoever writes these formulas down gets the same numbers. No dropout.
 *
 *   x = embedding.weight[token]                                     [batch, seq, d_model]
 *   in each block i:  x = x + attention(norm(x; blocks.i.norm.attn))
 *                     x = x + mlp(norm(x; blocks.i.norm.mlp))
 *   logits = norm(x; final.norm.weight) head.weight, or, tied (the default of recipes), times embedding.weight
 * transposed
 *
 *   norm(x; w)   = w * x / sqrt(mean(x^2) + 1e-5), over d_model (RMSNorm)
 *   attention(x) = (softmax(q k^T / sqrt(head_dim)) v) wo, head by head, each token seeing itself and those before it;
 *                  q = rotary(x wq), k = rotary(x wk), v = x wv; head h has columns [h, h + 1) * head_dim of q, and of
 *                  k and v those of head floor(h * kv_heads / heads); head_dim = d_model / heads
 *                  with qk_norm: q = rotary(norm(x wq; q_norm)), k = rotary(norm(x wk; k_norm)), the norm over each
 *                  head's head_dim elements
 *   rotary       turns the pair (j, j + head_dim / 2) of a head by position * rotary_base^(-2 j / head_dim), positions
 *                from 0: (a, b) becomes (a cos - b sin, a sin + b cos)
 *   mlp(x)       = (silu(x gate) * (x up)) down (SwiGLU)
 *   with bias each product with wq, wk, wv, wo, gate, up, down adds its bias
 *
 * Matrices are [in, out], a row vector times a matrix: PyTorch's Linear keeps the transpose, and a square one that was
 * not turned fits unnoticed. Weights that a recipe names (model.weights) have exactly these tensors, no other. Names,
 * shapes, the deviation of the initial values, which are normal around 0, and the layout on tp, where r is R and i is
 * I:
 *
 *   embedding.weight                     [256, d_model]         1 / sqrt(d_model)                       S0
 *   blocks.i.norm.attn, .norm.mlp        [d_model]              all 1                                   I, or (1)
 *   blocks.i.attn.wq                     [d_model, d_model]     1 / sqrt(d_model)                       S1
 *   blocks.i.attn.wk, .wv                [d_model, kv_width]    1 / sqrt(d_model)                       S1, or (2)
 *   blocks.i.attn.wo                     [d_model, d_model]     1 / sqrt(d_model) / sqrt(2 layers)      S0
 *   blocks.i.attn.q_norm, .k_norm        [head_dim]             all 1, with qk_norm                     R
 *   blocks.i.mlp.gate, .up               [d_model, d_hidden]    1 / sqrt(d_model)                       S1
 *   blocks.i.mlp.down                    [d_hidden, d_model]    1 / sqrt(d_hidden) / sqrt(2 layers)     S0
 *   wq_bias, wk_bias, wv_bias, gate_bias, up_bias beside their matrices: [out], all 0, with bias        S0, or (2)
 *   wo_bias, down_bias                   [d_model]              all 0, with bias                        R
 *   final.norm.weight                    [d_model]              all 1                                   I, or (1)
 *   head.weight (not if tied)            [d_model, 256]         1 / sqrt(d_model)                       S1
 *
 *   kv_width = kv_heads * head_dim. (1) with sequence_parallel R, or, with convert_norms, I and converted at each use.
 *   (2) R where tp does not divide kv_heads.
 *
 * Element e of a value, counted row by row, is deviation * sqrt(-2 ln(1 - u)) cos(2 pi v), with u and v the first 53
 * bits, as fractions, of the two 64-bit numbers of the draw (seed, stream XXH64(name), index e) that data.h describes.
 * The name is the one of the list, without that of a module: in programs of several, parameters of one name and shape
 * begin alike.
 *
 * The loss is cross-entropy, summed over the counted tokens of the step and divided by their number. Weight decay
 * applies to all matrices but embedding.weight. Parameters are R on dp and cp. The batch is S0 on dp and S1z on cp, the
 * residual stream on tp is I or, with sequence_parallel, S1: docs/types.md. */
typedef struct ad_decoder_options {
  int64_t layers, d_model, heads;
  int tied;                             /* 1, the default of recipes: the head is the embedding */
  double rotary_base;                   /* slowest rotation of the positions */
  int64_t kv_heads;                     /* heads of k and v; 0: as many as of q */
  int qk_norm;                          /* 1: queries and keys are normalised head by head */
  int bias;                             /* 1: the products of attention and MLP have biases */
  int sequence_parallel, convert_norms; /* how norms and stream lie on tp */
  int gather_keys;                      /* 1: over cp keys and values are gathered; 0: they go around the ring */
  ad_text_options data;
} ad_decoder_options;

typedef struct ad_gpt_options {
  ad_decoder_options decoder;
  int64_t d_hidden; /* of the MLP; 0: 8/3 d_model rounded up to a multiple of 16 */
} ad_gpt_options;

/* The kind "gpt": one module, "model"; one phase; one loss, "cross_entropy", over one count, "tokens". */
const ad_program_kind *ad_gpt(void);

/* The same decoder with a mixture of experts in the place of each MLP:
 *
 *   moe(x)   = sum over the top_k experts e of largest score: score_e * expert_e(x), or, with score_before_experts,
 *              expert_e(score_e * x); plus shared(x) if shared_experts is above 0
 *   score    = softmax(x router), or sigmoid(x router); of equal scores the lowest expert goes first; chosen scores are
 *              not normalised
 *   expert_e(x) = (silu(x gate[e]) * (x up[e])) down[e]; shared the same with matrices of its own
 *
 * With a capacity c an expert takes at most ceil(c * choices / experts) of a microbatch's choices, all ranks together,
 * of the tokens that come first in it; what it does not take is left out of the sum. With balance_rate r experts are
 * chosen by score + bias, a state [experts] that is 0 at first; after each step's update it grows by r where an expert
 * was chosen less often than the mean in that step, and falls by r where more often. With balance_loss the loss
 * "balance" is added times that coefficient: the mean over blocks of
 *
 *   experts * sum over e of (share of the choices that is e's) * (mean over tokens of softmax(x router)_e)
 *
 * over all tokens of a microbatch (1 where all is even), each microbatch with its share of the counted tokens.
 *
 * Names, shapes, deviations, and layouts, those of router and shared on tp, those of experts on the view `sparse`,
 * whose axis efsdp they are R on:
 *
 *   blocks.i.moe.router       [d_model, experts]                 1 / sqrt(d_model)         i; r with summed_gate
 *   blocks.i.moe.gate, .up    [experts, d_model, expert_hidden]  1 / sqrt(d_model)         ep=S0, etp=S2 or (3)
 *   blocks.i.moe.down         [experts, expert_hidden, d_model]  1 / sqrt(expert_hidden) / sqrt(2 layers)
 *                                                                                          ep=S0, etp=S1 or (3)
 *   blocks.i.moe.shared.gate, .up, .down: as mlp, d_hidden = shared_experts
 *   blocks.i.moe.bias         [experts], a state                 0
 *
 *   (3) etp=R where etp is 1: there the ranks of tp split the tokens between them; where etp has the ranks of tp they
 *   route the same tokens. With bias attention alone has biases. */
typedef struct ad_moe_options {
  ad_decoder_options decoder;
  int64_t experts, top_k;
  int64_t expert_hidden;    /* width inside an expert */
  int64_t shared_experts;   /* width inside the shared one; 0: there is none */
  int sigmoid;              /* 1: scores are the sigmoid of each logit; 0: the softmax over all experts */
  int score_before_experts; /* 1: the score is a factor of the expert's input; 0: of its output */
  int summed_gate;          /* the router on tp: 1: R, the reducer sums its gradient; 0: I */
  double capacity;          /* 0: no limit */
  double balance_loss;      /* 0: there is none */
  double balance_rate;      /* 0: there is no bias */
  char *sparse;             /* the view; NULL: no expert parallelism, ep=1 and etp=tp */
} ad_moe_options;

/* The kind "moe": module, phase, loss and count as those of gpt. */
const ad_program_kind *ad_moe(void);

/* Explains a decoder of gpt, the target, which does not change: each matrix W [in, out] of a site is written as V U, a
 * sum of rank-one components, V [in, components] and U [components, out], while an importance network says for each
 * position how much of each component is needed there.
 *
 * Sites are matrices that tokens are multiplied with inside the target's blocks, those whose names patterns match.
 * Their order is attn.wq, .wk, .wv, .wo, mlp.gate, .up, .down of block 0, then of block 1 and so on, whatever the order
 * of the patterns: that of the sites' inputs side by side, of their components in importances and sources (the first
 * site's first), and of blocks.
 *
 *   z    = encoder(the inputs of all sites side by side, each x / sqrt(mean(x^2) + 1e-5))
 *                                             [batch, seq, components of all sites]: input.weight, blocks as ocr's
 *          encoder has, of the width importance_d_model, each position seeing all, final.norm, output.weight. A site's
 *          input is what the target multiplies with W, nothing replaced; no gradient goes back into the target
 *   ci   = lower(z), of which masks are made (ad_lower; with plain_clamp the clamp's own slope)
 *   site(m, d) = ((x V) * m) U + d (x W - (x V) U), in the place of x W; d: one number for each position
 *
 * Losses, each times its coefficient; one whose coefficient is 0 is only measured. Positions are all of the step's
 * batch, global_batch * seq: data.valid is for the target's training alone.
 *   faithfulness  sum over sites of ||W - V U||^2 / weights of all sites
 *   stochastic    one site after another in the place of its product, the others as the target has them,
 *                 m = ci + (1 - ci) u: the divergence of the logits from the target's, summed, / (positions * sites).
 *                 u and d are the numbers of ad_array_uniform (array.h): the run's seed, the names "mask SITE" and
 *                 "remains SITE", the number of the step (the first is 0), that of the sample in the step's batch; of
 *                 a sample u is [seq, components], d is [seq]
 *   sparsity      with s_c = sum over positions of (upper(z_c) + epsilon)^power of a microbatch, all ranks: sum over
 *                 microbatches and c of s_c (1 + beta log2(1 + s_c)) / positions.
 *                 With a last_power, power is that of step s and goes there in a straight line: power + (last_power -
 *                 power) clamp((s / steps - anneal_from) / (anneal_to - anneal_from), 0, 1)
 *   adversarial   all sites at once, m = ci + (1 - ci) a and d = a', a and a' sources in [0, 1] for each sample of the
 *                 batch (scope "sample") or all samples of a microbatch ("batch"), position and component, which stay
 *                 from step to step: the divergence / positions
 *
 * The divergence is the sum of squares over the vocabulary (mse), or KL(target || masked) of their softmaxes. Positions
 * are all of the batch: of data.valid only the cross-entropies of what is found at the end take note.
 *
 * Sources are states of adv in f64, of each microbatch its own: sources.M.0 is a, [samples, seq, components of all
 * sites], sources.M.1 and on the a' of the sites, [samples, seq]; without samples where these share them. With bounds
 * "clamp" what climbs is the source, begins at 0.5, and stays at the edge of [0, 1] where it climbs out; with "sigmoid"
 * the source is the sigmoid of what climbs, which begins at 0. Before each forward pass of a training step there are
 * ascent_steps steps up, each after a pass of its own, and one more after the backward pass, unless ascent_steps or the
 * coefficient is 0. A step up adds ascent_lr * sign(g), 0 where g is 0, or Adam's ascent_lr * m / (sqrt(v) +
 * ascent_epsilon), with bias-corrected moments of decay 0.9 and 0.999 that begin at 0; t, their step's number, counts
 * the steps up of the microbatch in all steps of the training (sources.steps). g is the gradient, with respect to what
 * climbs, of the microbatch's divergence / positions, without the coefficient.
 *
 * Pools: `ci` has the importance network; `blocks` the components, whose sites its blocks share out, the first
 * ones to the first block; `adv` the sources. Each has its own slices of the batch, and a mesh of dp alone besides
 * `block`. The gradients of ci and those of all blocks have each a norm and a clip of their own.
 *
 * Names, shapes, deviations; in is that of a site, n the sum of all sites', and Weight decay applies to:
 *
 *   ci.input.weight                 [n, importance_d_model]               1 / sqrt(n)                    yes
 *   ci.blocks.i, ci.final.norm      as a gpt's without biases and head norms, importance_layers of them  matrices
 *   ci.output.weight                [importance_d_model, components of all sites]
 *                                                                         1 / sqrt(importance_d_model)   yes
 *   blocks.SITE.V, SITE as blocks.0.attn.wq   [in, components]            1 / sqrt(in)                   no
 *   blocks.SITE.U                             [components, out]           1 / sqrt(components)           no
 *
 * The width inside the network's MLPs is 8/3 importance_d_model rounded up to a multiple of 16; its rotary_base is the
 * target's. */
typedef struct ad_decompose_options {
  ad_gpt_options target;
  /* Of the target: a file, or training it first for so many steps; neither: drawn from the seed. */
  char *weights;
  int64_t target_steps, target_warmup, target_batch;
  double target_lr, target_weight_decay;
  const char *trained; /* no key: the file that the training gave, borrowed; NULL: there was none yet */
  int64_t importance_layers, importance_d_model, importance_heads;
  char **matches; /* patterns of site names */
  size_t match_count;
  int64_t *components; /* of the sites of each pattern */
  size_t components_count;
  double faithfulness, stochastic, sparsity, adversarial; /* coefficients */
  char *divergence;                                       /* "mse" or "kl" */
  int plain_clamp;
  double power, beta, epsilon;
  double last_power, anneal_from, anneal_to; /* 0: the power stays; fractions of the steps */
  int64_t ascent_steps;
  char *ascent_rule;   /* "sign" or "adam" */
  char *ascent_scope;  /* "sample" or "batch" */
  char *ascent_bounds; /* "clamp" or "sigmoid" */
  double ascent_lr, ascent_epsilon;
  ad_dtype wire_values, wire_gradients, wire_weights; /* 0: as they are */
} ad_decompose_options;

/* The kind "decompose": modules "ci", "blocks" (one for each block) and "adv". */
const ad_program_kind *ad_decompose(void);

/* Reads lines of text from pictures: an encoder and a decoder joined by a bridge.
 *
 *   A picture [height, width] is cut into n = width / patch patches, from left to right, of height * patch pixels each,
 *   row by row.
 *   x = patches patch.weight                                        [batch, n, encoder_d_model]
 *   in each block i:  x = x + attention(norm(x; blocks.i.norm.attn))   each patch sees all
 *                     x = x + mlp(norm(x; blocks.i.norm.mlp))
 *   images = norm(x; final.norm.weight) projection.weight              [batch, n, d_model]
 *
 * with the formulas of the decoder above, every key head its own, without biases and head norms, and its rotary_base;
 * the width inside the encoder's MLPs is 8/3 encoder_d_model rounded up to a multiple of 16, whatever d_hidden is.
 * The decoder is that of gpt with an MLP of d_hidden. Its sequence is n tokens whose embeddings `images` replace (token
 * 0), the line's characters, and newlines; seq = n + chars. Position n - 1 predicts the first character, each character
 * the next, the last one a newline; what follows does not count. Line i of step s is number s * global_batch + i of
 * those that are drawn (data.h); a byte is its own token, a newline 10.
 *
 * Names are module.name: encoder.patch.weight and model.embedding.weight. encoder.patch.weight and
 * encoder.projection.weight are normal with deviation 1 / sqrt(rows), I on tp, and decay. */
typedef struct ad_ocr_options {
  ad_decoder_options decoder; /* its data: only seq, which follows from the others */
  int64_t d_hidden;           /* of the decoder's MLP; 0: as gpt's */
  int64_t encoder_layers, encoder_d_model, encoder_heads;
  int64_t patch; /* pixels, a divisor of the picture's width */
  int ragged;    /* 1: the bridge takes parts of the batch that overlap in any way */
  int64_t read;  /* held-out lines that are read after the training */
  ad_line_options lines;
} ad_ocr_options;

/* The kind "ocr": modules "encoder" and "model", a phase of each; one loss, "cross_entropy", over one count,
 * "characters", the newline one of them. */
const ad_program_kind *ad_ocr(void);

#endif
