/* The options and formulas of the program `moe`. */
#ifndef MOE_MOE_H
#define MOE_MOE_H
#include "decoder/options.h"

/* The decoder of decoder/options.h with a mixture of experts in the place of each MLP:
 *
 *   moe(x)   = sum over the top_k experts e of largest score: score_e * expert_e(x), or, with score_before_experts,
 *              expert_e(score_e * x); plus shared(x) if shared_experts is above 0
 *   score    = softmax(x router), or sigmoid(x router); among equal scores the lowest expert goes first; with
 *              normalised_scores each of a token's top_k scores is divided by their sum
 *   expert_e(x) = (silu(x gate[e]) * (x up[e])) down[e]; shared the same with its own matrices
 *
 * With a capacity c an expert takes at most ceil(c * choices / experts) of a microbatch's choices, over all ranks, from
 * the tokens that come first in the microbatch. Choices that it does not take are left out of the sum.
 *
 * With balance_rate r experts are chosen by score + bias, where bias is a state [experts], 0 at first. After each
 * step's update the bias grows by r where an expert was chosen less often than the mean in that step, and falls by r
 * where it was chosen more often.
 *
 * With balance_loss the loss "balance" is added times that coefficient: the mean over blocks of
 *
 *   experts * sum over e of (share of the choices that is e's) * (mean over tokens of softmax(x router)_e)
 *
 * over all tokens of a microbatch (1 where all is even), each microbatch with its share of the counted tokens.
 *
 * Columns: name, shape, standard deviation of the initial values, layout (of router and shared: on tp; of experts: on
 * the view `sparse`, on whose axis efsdp they are R):
 *
 *   blocks.i.moe.router       [d_model, experts]                 1 / sqrt(d_model)         I; R with summed_gate
 *   blocks.i.moe.gate, .up    [experts, d_model, expert_hidden]  1 / sqrt(d_model)         ep=S0, etp=S2 or (3)
 *   blocks.i.moe.down         [experts, expert_hidden, d_model]  1 / sqrt(expert_hidden) / sqrt(2 layers)
 *                                                                                          ep=S0, etp=S1 or (3)
 *   blocks.i.moe.shared.gate, .up, .down: as mlp, d_hidden = shared_experts
 *   blocks.i.moe.bias         [experts], a state                 0
 *
 *   (3) etp=R if etp is 1: then the ranks of tp split the tokens between them. If etp has the ranks of tp, they all
 *   route the same tokens. Only attention may have biases. */
typedef struct ad_moe_options {
  ad_decoder_options decoder;
  int64_t experts, top_k;
  int64_t expert_hidden;    /* width inside an expert */
  int64_t shared_experts;   /* width inside the shared expert; 0: there is none */
  int sigmoid;              /* 1: a score is the sigmoid of a logit; 0: scores are the softmax over all experts */
  int score_before_experts; /* 1: an expert's input is multiplied by the score; 0: its output is */
  int normalised_scores;    /* 1: a token's chosen scores are divided by their sum */
  int summed_gate;          /* layout of the router on tp. 1: R, with a gradient that the reducer sums; 0: I */
  double capacity;          /* the most choices that an expert takes, divided by its even share; 0: no limit */
  double balance_loss;      /* coefficient of the load-balancing loss; 0: there is none */
  double balance_rate;      /* by how much a step changes the bias; 0: there is no bias */
  char *sparse;             /* the view of the mesh on which experts lie; NULL: ep=1 and etp=tp, no expert
                             * parallelism */
} ad_moe_options;

/* The program kind "moe". Its modules, phases, loss and count are those of gpt. */
const ad_program_kind *ad_moe(void);

#endif
