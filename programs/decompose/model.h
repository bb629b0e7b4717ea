/* What the program `decompose` computes. */
#ifndef DECOMPOSE_MODEL_H
#define DECOMPOSE_MODEL_H
#include "gpt/gpt.h"

/* Explains a decoder of gpt, the target, which does not change: each matrix W [in, out] of a site is written as V U, a
 * sum of rank-one components, V [in, components] and U [components, out], while an importance network says for each
 * position how much of each component is needed there.
 *
 * Sites are those matrices inside the target's blocks that multiply tokens and have a name that a pattern matches.
 * Their order is attn.wq, .wk, .wv, .wo, mlp.gate, .up, .down of block 0, then of block 1 and so on; the order of the
 * patterns does not matter. In this order the inputs of sites are concatenated, components are numbered (in importances
 * and sources), and sites are divided among blocks.
 *
 *   z    = encoder(the concatenated inputs of all sites, each x / sqrt(mean(x^2) + 1e-5))
 *                                             [batch, seq, components of all sites]: input.weight, blocks as in ocr's
 *          encoder, of width importance_d_model, each position seeing all, final.norm, output.weight. A site's input
 *          is the x of the product x W while nothing is replaced; no gradient goes back into the target
 *   ci   = lower(z), from which masks are made (ad_lower; with plain_clamp the clamp's own slope)
 *   site(m, d) = ((x V) * m) U + d (x W - (x V) U), in place of x W; d: one number for each position
 *
 * Losses, each times its coefficient; a loss with coefficient 0 is only measured. `positions` is the number of all
 * positions of the step's batch, global_batch * seq: data.valid is only for the training of the target.
 *   faithfulness  sum over sites of ||W - V U||^2 / weights of all sites
 *   stochastic    one site at a time is replaced, with m = ci + (1 - ci) u; all other products are the target's:
 *                 the divergence of the logits from the target's, summed over sites, / (positions * sites).
 *                 u and d are drawn by ad_array_uniform (tensor.h) from the run's seed, the names "mask SITE" and
 *                 "remains SITE", the step's number (from 0) and the sample's number in the step's batch; for each
 *                 sample u is [seq, components] and d is [seq]
 *   sparsity      with s_c = sum over positions of (upper(z_c) + epsilon)^power of a microbatch, all ranks: sum over
 *                 microbatches and c of s_c (1 + beta log2(1 + s_c)) / positions.
 *                 With a last_power, the power changes linearly; at step s it is
 *                 power + (last_power - power) clamp((s / steps - anneal_from) / (anneal_to - anneal_from), 0, 1)
 *   adversarial   all sites are replaced together, with m = ci + (1 - ci) a and d = a': the divergence / positions.
 *                 a and a' are sources in [0, 1] that stay from step to step: one for each position and component of
 *                 each sample of the batch (scope "sample"), or shared by all samples of a microbatch ("batch")
 *
 * The divergence is the sum of squared differences over the vocabulary (mse), or KL(target || masked) of the softmaxes.
 * It is summed over all positions; only the cross-entropies that are reported at the end depend on data.valid.
 *
 * Sources are states of adv in f64, separate for each microbatch M: sources.M.0 is a, [samples, seq, components of all
 * sites]; sources.M.1 and on are a' of each site, [samples, seq]. Shared sources have no dimension of samples. With
 * bounds "clamp" the source itself climbs, from 0.5, and is clamped to [0, 1]; with "sigmoid" the source is the sigmoid
 * of a number that climbs from 0. Before each forward pass of a training step there are ascent_steps ascent steps, each
 * after its own forward pass, and one more ascent step after the backward pass, unless ascent_steps or the
 * coefficient is 0. An ascent step adds ascent_lr * sign(g) (0 if g is 0), or Adam's
 * ascent_lr * m / (sqrt(v) + ascent_epsilon), with bias-corrected moments of decay 0.9 and 0.999 that begin at 0; their
 * step's number counts the microbatch's ascent steps in the whole training (sources.steps). g is the gradient of the
 * microbatch's divergence / positions, without the coefficient, with respect to the number that climbs.
 *
 * Pools: `ci` has the importance network; `blocks` has the components, and its blocks divide the sites, the first
 * sites to the first block; `adv` has the sources. Each pool has its own slices of the batch, and a mesh of dp alone
 * (and `block`). The gradients of ci have a norm and clip of their own; those of all blocks together have another.
 *
 * Columns: name, shape, standard deviation of the initial values, whether weight decay applies. `in` is a site's, and n
 * the sum of all sites' `in`:
 *
 *   ci.input.weight                 [n, importance_d_model]               1 / sqrt(n)                    yes
 *   ci.blocks.i, ci.final.norm      as gpt's without biases and head norms, importance_layers of them   matrices
 *   ci.output.weight                [importance_d_model, components of all sites]
 *                                                                         1 / sqrt(importance_d_model)   yes
 *   blocks.SITE.V, SITE as blocks.0.attn.wq   [in, components]            1 / sqrt(in)                   no
 *   blocks.SITE.U                             [components, out]           1 / sqrt(components)           no
 *
 * The width inside the network's MLPs is 8/3 importance_d_model rounded up to a multiple of 16; its rotary_base is the
 * target's, not scaled; its norms add 1e-5, and a head is d_model / heads wide. */
typedef struct ad_decompose_options {
  ad_gpt_options target;
  /* Where the target's weights come from: a file, or a training of target_steps steps before this one, or else the
   * seed. */
  char *weights;
  int64_t target_steps, target_warmup, target_batch;
  double target_lr, target_weight_decay;
  const char *trained; /* not a recipe key: path of the weights that the target's training wrote, borrowed; NULL
                        * before that training */
  int64_t importance_layers, importance_d_model, importance_heads;
  char **matches; /* patterns that names of sites must match */
  size_t match_count;
  int64_t *components; /* for each pattern, the number of components of the sites that match it */
  size_t components_count;
  double faithfulness, stochastic, sparsity, adversarial; /* coefficients of the losses */
  char *divergence;                                       /* "mse" or "kl" */
  int plain_clamp;
  double power, beta, epsilon;
  double last_power, anneal_from, anneal_to; /* last_power 0: the power does not change; anneal_from, anneal_to:
                                              * fractions of the training's steps */
  int64_t ascent_steps;
  char *ascent_rule;   /* "sign" or "adam" */
  char *ascent_scope;  /* "sample" or "batch" */
  char *ascent_bounds; /* "clamp" or "sigmoid" */
  double ascent_lr, ascent_epsilon;
  ad_dtype comm_dtype_values, comm_dtype_gradients, comm_dtype_weights; /* dtypes in which values are sent between
                                                                         * pools; 0: not rounded */
} ad_decompose_options;

/* The program kind "decompose". Its modules are "ci", "blocks" (one for each block) and "adv". */
const ad_program_kind *ad_decompose(void);

#endif
