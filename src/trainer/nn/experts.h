/* Mixtures of experts, as layers.h has the other layers. */
#ifndef NN_EXPERTS_H
#define NN_EXPERTS_H
#include "addend/layers.h"
#include "tensor/routing.h"

/* The sum over each token's top_k experts e, of score_e * mlp_e(x), or of mlp_e(score_e * x); and a shared MLP for all.
 * Experts lie on a view of the mesh with the axes efsdp, ep and etp: matrices [experts, in, out] are R on efsdp, their
 * experts are cut over ep. Two layouts:
 *   etp=1    experts are whole, and the ranks of tp split the tokens between them;
 *   etp=tp   experts are cut over etp as the MLP is over tp, and the ranks of tp route the same tokens.
 * Without expert parallelism ep is 1. */
typedef struct ad_experts_shape {
  int64_t d_model, experts, hidden, top_k;
  int64_t shared_hidden; /* of the shared MLP; 0: there is none */
  int uses_sigmoid;      /* scores: 1: the sigmoid of each logit; 0: the softmax over all experts */
  int scores_first;      /* 1: the score is a factor of the expert's input; 0: of its output */
  int gate_is_summed;    /* the gate on tp: 1: R, the reducer sums; 0: I */
  double capacity;       /* of each expert, times an even share of the choices; 0: no limit */
  int has_balance_loss;
  double output_factor;
  const ad_mesh *view; /* borrowed */
  ad_parallel parallel;
} ad_experts_shape;
typedef struct ad_experts_layer {
  ad_experts_shape shape;
  size_t router, gate, up, down;
  ad_mlp_layer shared;
} ad_experts_layer;
ad_experts_layer ad_experts_declare(ad_declarations *to, const char *path, const ad_experts_shape *shape);
/* Call sites say this where the scores, or the gate, become each rank's own: the backward there is the sum of the
 * gate's gradient over tp. */
#define AD_SCORES_BECOME_OWN "the router's scores"
/* What the layer says beside its result. */
typedef struct ad_experts_notes {
  const ad_routing *routing; /* NULL: none was made, the tape has failed */
  ad_tensor *balance;        /* the balancing loss of these tokens, P or I on every axis; NULL: not wanted */
} ad_experts_notes;
/* bias [experts], R: added to the scores where they are chosen by, and nowhere else; NULL: none. decisions: of the
 * batch whose hidden states x [batch, seq, d] are. */
ad_tensor *ad_experts_forward(ad_tape *t, ad_tensor *const *params, const ad_experts_layer *layer, ad_tensor *x,
                              const ad_array *bias, ad_decisions decisions, ad_experts_notes *notes);

#endif
