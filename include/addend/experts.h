/* The layer of experts, as layers.h has the other layers: a router chooses some experts for each token, their rows go
 * to the ranks that have them and come back. What it is made of is in tensor.h, "mixtures of experts". */
#ifndef ADDEND_EXPERTS_H
#define ADDEND_EXPERTS_H
#include "addend/layers.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The sum over each token's top_k experts e, of score_e * mlp_e(x), or of mlp_e(score_e * x); and a shared MLP for all.
 * Of equal scores the lowest expert goes first.
 *
 * Experts lie on a view of the mesh with the axes efsdp, ep and etp (ad_mesh_create_view, or ad_key_view of a recipe's
 * text): matrices [experts, in, out] are R on efsdp, their experts are cut over ep. Two layouts:
 *   etp=1    experts are whole, and the ranks of tp split the tokens between them;
 *   etp=tp   experts are cut over etp as the MLP is over tp, and the ranks of tp route the same tokens. The groups of
 *            etp are those of tp.
 * Without expert parallelism ep is 1. */
typedef struct ad_experts_shape {
  size_t size; /* sizeof(ad_experts_shape) */
  int64_t d_model, experts;
  int64_t hidden;        /* width inside an expert */
  int64_t top_k;         /* experts of each token */
  int64_t shared_hidden; /* width inside the shared MLP; 0: there is none */
  int uses_sigmoid;      /* scores: 1: the sigmoid of each logit; 0: the softmax over all experts */
  int scores_first;      /* 1: the score is a factor of the expert's input; 0: of its output */
  int gate_is_summed;    /* the router on tp: 1: R, the reducer sums its gradient; 0: I */
  double capacity;       /* what an expert takes of a batch at most, times an even share of the choices (ad_limit);
                          * 0: no limit */
  int has_balance_loss;  /* 1: ad_experts_notes has it */
  double output_factor;  /* of the deviation of `down`, as ad_mlp_shape's; 1: that of its size */
  const ad_mesh *view;   /* borrowed as long as the layer is used */
  ad_parallel parallel;
  int normalised_scores; /* 1: the scores of a token's experts are divided by their sum, those of dropped choices in it
                          */
} ad_experts_shape;

/* Numbers of parameters. */
typedef struct ad_experts_layer {
  ad_experts_shape shape;
  size_t router, gate, up, down;
  ad_mlp_layer shared; /* where shape.shared_hidden is not 0 */
} ad_experts_layer;

/* Declares PATH.router [d_model, experts], PATH.gate and PATH.up [experts, d_model, hidden], PATH.down [experts,
 * hidden, d_model] and, where there is a shared MLP, PATH.shared.gate, .up and .down. AD_INVALID, which sticks to the
 * list: sizes below 1, more than all experts for a token, a view of other ranks than the list's mesh, an etp that is
 * neither 1 nor tp. */
AD_API ad_experts_layer ad_experts_declare(ad_declarations *to, const char *path, const ad_experts_shape *shape);

/* What the layer says beside its result. */
typedef struct ad_experts_notes {
  const ad_routing *routing; /* who went where, until the tape's reset; NULL: none was made, the tape has failed */
  ad_tensor *balance;        /* the balancing loss of these tokens (ad_balance), P or I on every axis: a loss with
                              * `per_microbatch`; NULL: not wanted */
} ad_experts_notes;

/* x [batch, seq, d_model] -> the same, laid out as x. bias [experts], R: added to the scores where experts are chosen,
 * and nowhere else; NULL: none. `decisions`: of the batch whose hidden states x are; {NULL, 0}: they are not kept.
 * notes: NULL allowed. Collective over the mesh. What is wrong sticks to the tape. */
AD_API ad_tensor *ad_experts_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                                     const ad_array *bias, ad_decisions decisions, ad_experts_notes *notes);

#if defined(__cplusplus)
}
#endif
#endif
