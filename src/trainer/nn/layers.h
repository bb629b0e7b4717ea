/* Layers as formulas over numbered parameters: a layer is a few parameter numbers, `declare` adds them to a model's
 * list and `forward` is its formula. `params[i]` is parameter i's leaf on the tape; x is [batch, seq, d_model], on `tp`
 * as ad_parallel says: I, or cut along the sequence. */
#ifndef NN_LAYERS_H
#define NN_LAYERS_H
#include "nn/declare.h"
#include "tensor/routing.h"

/* How layers lie on the axes tp and cp; the same for all layers of a model. */
typedef struct ad_parallel {
  int sequence;     /* 1: on tp the residual stream is cut along the sequence (S1); 0: it is I */
  int converts;     /* 1: the weights of norms on a cut stream are I, converted I->R at each use; 0: they are R */
  int gathers_keys; /* 1: over cp keys and values are gathered; 0: they go around the ring */
} ad_parallel;

/* Which dimension of a matrix [in, out] is cut over tp. */
typedef enum ad_cutting {
  AD_CUT_COLUMNS, /* S1: x is R, y is cut along its last dimension */
  AD_CUT_ROWS,    /* S0: x is cut along its last dimension, y is P */
  AD_CUT_NOTHING  /* R: x is R, y is R; each rank uses of y what it needs, and leaves addends */
} ad_cutting;

/* What a program puts in the place of a product x W: `weight` is W's number. */
typedef struct ad_stand_in {
  ad_tensor *(*product)(void *own, ad_tape *t, size_t weight, ad_tensor *x, ad_tensor *w);
  void *own;
} ad_stand_in;

/* y = x W + b, W [in, out]; b [out], or none. */
typedef struct ad_linear_layer {
  size_t weight, bias;
  int has_bias;
  ad_cutting cutting;
  const ad_stand_in *stand_in; /* borrowed; NULL: the product itself */
} ad_linear_layer;
typedef struct ad_linear_shape {
  int64_t in, out;
  ad_cutting cutting;
  int has_bias;
  double deviation;
} ad_linear_shape;
ad_linear_layer ad_linear_declare(ad_declarations *to, const char *path, const char *name,
                                  const ad_linear_shape *shape);
ad_tensor *ad_linear_forward(ad_tape *t, ad_tensor *const *params, const ad_linear_layer *layer, ad_tensor *x);

/* Rows of a table [vocabulary, d_model], cut over tp; as a tied head, products with them. */
typedef struct ad_embedding_layer {
  size_t table;
  ad_parallel parallel;
} ad_embedding_layer;
typedef struct ad_embedding_shape {
  int64_t vocabulary, d_model;
  double deviation;
  int tied; /* it is the head too */
} ad_embedding_shape;
ad_embedding_layer ad_embedding_declare(ad_declarations *to, const char *path, const ad_embedding_shape *shape,
                                        ad_parallel parallel);
ad_tensor *ad_embedding_forward(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                ad_tensor *tokens);
/* Logits, cut along the vocabulary over tp; x is R there. */
ad_tensor *ad_embedding_logits(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer, ad_tensor *x);

/* RMSNorm of the residual stream. */
typedef struct ad_norm_layer {
  size_t weight;
  int converts;
} ad_norm_layer;
ad_norm_layer ad_norm_declare(ad_declarations *to, const char *path, const char *name, int64_t d_model,
                              ad_parallel parallel);
ad_tensor *ad_norm_forward(ad_tape *t, ad_tensor *const *params, const ad_norm_layer *layer, ad_tensor *x);

/* Attention with rotary positions: attention(rotary(norm(x Wq)), rotary(norm(x Wk)), x Wv) Wo, the norms of each head
 * optional. Causal, or each position sees all. Over tp heads are cut; those of k and v too if tp divides their number,
 * otherwise every rank has all of them (R). */
typedef struct ad_attention_layer {
  ad_linear_layer wq, wk, wv, wo;
  size_t q_norm, k_norm;
  int has_norms, sees_all;
  int64_t head_dim;
  double rotary_base;
  ad_parallel parallel;
} ad_attention_layer;
typedef struct ad_attention_shape {
  int64_t d_model, heads, kv_heads;
  double rotary_base, output_factor;
  int has_bias, has_norms;
  int sees_all; /* 1: no mask; 0: causal */
  ad_parallel parallel;
} ad_attention_shape;
ad_attention_layer ad_attention_declare(ad_declarations *to, const char *path, const ad_attention_shape *shape);
ad_tensor *ad_attention_forward(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer, ad_tensor *x);

/* swiglu(x Wgate, x Wup) Wdown. */
typedef struct ad_mlp_layer {
  ad_linear_layer gate, up, down;
  ad_parallel parallel;
} ad_mlp_layer;
typedef struct ad_mlp_shape {
  int64_t d_model, d_hidden;
  double output_factor;
  int has_bias;
  ad_parallel parallel;
} ad_mlp_shape;
ad_mlp_layer ad_mlp_declare(ad_declarations *to, const char *path, const ad_mlp_shape *shape);
ad_tensor *ad_mlp_forward(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);
/* Between entering and leaving tp: x is R there, the result P. */
ad_tensor *ad_mlp_products(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);

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

/* The deviation at which a product with a matrix of `in` rows keeps the size of its input. */
double ad_deviation_keeping_size(int64_t in);

#endif
