/* What the program `decompose` computes. */
#ifndef PROGRAM_DECOMPOSE_MODEL_H
#define PROGRAM_DECOMPOSE_MODEL_H
#include "program/gpt/gpt.h"

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
 * target's, not scaled; its norms add 1e-5, and a head is d_model / heads wide. */
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

#endif
