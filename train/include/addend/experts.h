/* The mixture-of-experts layer, in the style of layers.h: a router chooses some experts for each token; the token's row
 * goes to these experts' ranks and comes back. Its operations are in routing.h.
 *
 * For authors of programs. Only one thread at a time may use a tape, and only one may use a list of declarations. */
#ifndef ADDEND_EXPERTS_H
#define ADDEND_EXPERTS_H
#include "addend/layers.h"
#include "addend/routing.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The layer's result for a token is the sum over its top_k experts e of score_e * mlp_e(x), or of mlp_e(score_e * x),
 * plus a shared MLP that all tokens use, if there is one. Among equal scores the expert with the lowest number wins.
 *
 * Experts lie on a view of the mesh with the axes efsdp, ep and etp (ad_mesh_create_view, or ad_key_view for a recipe's
 * text). Their matrices [experts, in, out] are R on efsdp and sharded along the experts over ep. Two layouts are
 * possible:
 *   etp=1    each expert is full on one rank, and the ranks of tp split the tokens between them
 *   etp=tp   each expert is sharded over etp as the MLP is over tp, and the ranks of tp route the same tokens; the
 *            groups of etp are those of tp
 * Without expert parallelism ep is 1. */
typedef struct ad_experts_shape {
  size_t size; /* sizeof(ad_experts_shape) */
  int64_t d_model, experts;
  int64_t hidden;        /* width inside an expert */
  int64_t top_k;         /* number of experts that each token chooses */
  int64_t shared_hidden; /* width inside the shared MLP; 0: there is none */
  int uses_sigmoid;      /* how scores are computed; 1: the sigmoid of each logit; 0: the softmax over all experts */
  int scores_first;      /* 1: the score multiplies the expert's input; 0: the score multiplies the expert's output */
  int gate_is_summed;    /* type of the router's weight on tp; 1: R, the reducer sums its gradient; 0: I */
  /* The most choices that an expert takes in a batch, as a multiple of an even share of all choices (ad_limit); 0: no
   * limit. */
  double capacity;
  int has_balance_loss; /* 1: the balancing loss is computed, and returned in ad_experts_notes */
  /* factor on the standard deviation of the initial values of `down`, as in ad_mlp_shape; 1: the usual deviation for
   * its size */
  double output_factor;
  const ad_mesh *view; /* borrowed as long as the layer is used */
  ad_parallel parallel;
  /* 1: the scores of a token's chosen experts are divided by their sum, which includes dropped choices */
  int normalised_scores;
} ad_experts_shape;

/* The indices of the layer's parameters in the module. */
typedef struct ad_experts_layer {
  ad_experts_shape shape;
  size_t router, gate, up, down;
  ad_mlp_layer shared; /* used only if shape.shared_hidden is not 0 */
} ad_experts_layer;

/* Declares the layer's parameters:
 *   PATH.router                       [d_model, experts]
 *   PATH.gate, PATH.up                [experts, d_model, hidden]
 *   PATH.down                         [experts, hidden, d_model]
 *   PATH.shared.gate, .up and .down   if there is a shared MLP
 * AD_INVALID, which sticks to the list: a size below 1, more choices of a token than experts, a view of other ranks
 * than the list's mesh, an etp that is neither 1 nor tp. */
AD_API ad_experts_layer ad_experts_declare(ad_declarations *to, const char *path, const ad_experts_shape *shape);

/* Results of the layer besides its output. */
typedef struct ad_experts_notes {
  /* the choices of experts for each token; valid until the tape's reset; NULL if the tape has failed */
  const ad_routing *routing;
  /* The balancing loss of these tokens (ad_balance), P or I on every axis: a loss with `per_microbatch`. NULL: not
   * wanted. */
  ad_tensor *balance;
} ad_experts_notes;

/* x [batch, seq, d_model] -> a result of the same shape and layout. bias [experts], R: added to the scores only for
 * choosing experts; NULL: none. `decisions`: the choices that are kept for the batch to which x belongs; {NULL, 0}:
 * choices are not kept. notes: NULL allowed. Collective over the mesh. Errors stick to the tape. */
AD_API ad_tensor *ad_experts_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                                     const ad_array *bias, ad_decisions decisions, ad_experts_notes *notes);

#if defined(__cplusplus)
}
#endif
#endif
