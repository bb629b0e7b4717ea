/* Layers as formulas over numbered parameters: a layer is a few parameter numbers, `declare` adds them to a model's
 * list and `forward` is its formula. `params[i]` is parameter i's leaf on the tape; x is [batch, seq, d_model], on `tp`
 * as ad_parallel says: I, or cut along the sequence. */
#ifndef ADDEND_LAYERS_H
#define ADDEND_LAYERS_H
#include "addend/parameter.h"
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* ---- what a model has ---- */

/* The list of parameters, and of states, that a model declares. Building it reads like a description: the first failure
 * sticks to the list and is reported once, at the end (ad_program_add_declared). */
typedef struct ad_declarations {
  ad_layout replicated; /* R on dp and cp, where users leave addends; I on the other axes that the mesh names, R on
                         * those that it does not: what a layer starts from that cuts nothing */
  int unit;             /* of every parameter that is declared next */
  ad_param_spec *list;  /* with names of their own; storage is the compute layout, the contract is empty */
  size_t count, capacity;
  ad_state_spec *states; /* with names of their own */
  size_t state_count;
  ad_status status; /* the first failure; its message stays in ad_last_error() until the next one */
} ad_declarations;

/* An empty list. Borrows the mesh. */
AD_API ad_declarations ad_declarations_on(const ad_mesh *mesh);
AD_API void ad_declarations_release(ad_declarations *list);

/* Takes what the layer states of a parameter: shape, layout, `sharded`, decay and initial values. Its name is
 * PATH.NAME, its unit the list's. Returns its number. */
AD_API size_t ad_declare_param(ad_declarations *to, const char *path, const char *name, ad_param_spec spec);
/* The same for a state: dtype, shape, layout and first value. */
AD_API size_t ad_declare_state(ad_declarations *to, const char *path, const char *name, ad_state_spec spec);

/* How layers lie on the axes tp and cp; the same for all layers of a model. */
typedef struct ad_parallel {
  int sequence;     /* 1: on tp the residual stream is cut along the sequence (S1); 0: it is I */
  int converts;     /* 1: the weights of norms on a cut stream are I, converted I->R at each use; 0: they are R */
  int gathers_keys; /* 1: over cp keys and values are gathered; 0: they go around the ring */
} ad_parallel;

/* ---- tensor parallelism ----
 * How activations come into a region where matrices are cut over `tp`, and how they leave it. On a mesh that does not
 * name `tp` there is nothing to do. */

/* The residual stream [batch, seq, d] is I on `tp`, or, with sequence parallelism, cut along the sequence: S1. Inside,
 * values are R: each rank's columns leave an addend of the gradient.
 *   enter: I->R by convert (backward all_reduce P->I), or S1->R by all_gather (backward reduce_scatter P->S1)
 *   leave: P->I by all_reduce (backward convert I->R), or P->S1 by reduce_scatter (backward all_gather S1->R) */
AD_API ad_tensor *ad_tp_enter_at(ad_tape *t, ad_tensor *x, ad_parallel parallel, const char *site);
AD_API ad_tensor *ad_tp_leave_at(ad_tape *t, ad_tensor *x, ad_parallel parallel, const char *site);
/* A weight that is I on `tp`, used where the sequence is cut there: I->R, whose backward is the sum. */
AD_API ad_tensor *ad_tp_use_at(ad_tape *t, ad_tensor *weight, const char *site);
AD_API int ad_tp_is_named(const ad_tensor *x); /* by the mesh that x lies on */
/* An R bias of a P value: one rank's copy counts. */
AD_API ad_tensor *ad_tp_once_at(ad_tape *t, ad_tensor *bias, const char *site);
#define ad_tp_enter(t, x, parallel) ad_tp_enter_at((t), (x), (parallel), AD_HERE)
#define ad_tp_leave(t, x, parallel) ad_tp_leave_at((t), (x), (parallel), AD_HERE)
#define ad_tp_use(t, weight) ad_tp_use_at((t), (weight), AD_HERE)
#define ad_tp_once(t, bias) ad_tp_once_at((t), (bias), AD_HERE)
/* `type` on tp if the mesh names it. */
AD_API void ad_tp_type(ad_layout *layout, ad_type type);

/* ---- layers ---- */

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
AD_API ad_linear_layer ad_linear_declare(ad_declarations *to, const char *path, const char *name,
                                         const ad_linear_shape *shape);
AD_API ad_tensor *ad_linear_forward(ad_tape *t, ad_tensor *const *params, const ad_linear_layer *layer, ad_tensor *x);

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
AD_API ad_embedding_layer ad_embedding_declare(ad_declarations *to, const char *path, const ad_embedding_shape *shape,
                                               ad_parallel parallel);
AD_API ad_tensor *ad_embedding_forward(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                       ad_tensor *tokens);
/* Logits, cut along the vocabulary over tp; x is R there. */
AD_API ad_tensor *ad_embedding_logits(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                      ad_tensor *x);

/* RMSNorm of the residual stream. */
typedef struct ad_norm_layer {
  size_t weight;
  int converts;
  double epsilon; /* added to the mean square; ad_norm_declare leaves it 0: AD_NORM_EPSILON */
} ad_norm_layer;
#define AD_NORM_EPSILON 1e-5
AD_API ad_norm_layer ad_norm_declare(ad_declarations *to, const char *path, const char *name, int64_t d_model,
                                     ad_parallel parallel);
AD_API ad_tensor *ad_norm_forward(ad_tape *t, ad_tensor *const *params, const ad_norm_layer *layer, ad_tensor *x);

/* Attention with rotary positions: attention(rotary(norm(x Wq)), rotary(norm(x Wk)), x Wv) Wo, the norms of each head
 * optional: Wq is [d_model, heads*head_dim], Wk and Wv [d_model, kv_heads*head_dim], Wo [heads*head_dim, d_model].
 * Causal, or each position sees all. Over tp heads are cut; those of k and v too if tp divides their number, otherwise
 * every rank has all of them (R). */
typedef struct ad_attention_layer {
  ad_linear_layer wq, wk, wv, wo;
  size_t q_norm, k_norm;
  int has_norms, sees_all;
  int64_t head_dim;
  double rotary_base;
  ad_parallel parallel;
  double norm_epsilon; /* of the norms of heads */
  ad_rotary_scaling rotary_scaling;
} ad_attention_layer;
typedef struct ad_attention_shape {
  int64_t d_model, heads, kv_heads;
  double rotary_base, output_factor;
  int has_bias, has_norms;
  int sees_all; /* 1: no mask; 0: causal */
  ad_parallel parallel;
  int64_t head_dim;                 /* even; 0: d_model / heads */
  int has_no_output_bias;           /* 1: with has_bias Wq, Wk and Wv have biases, Wo has none; 0: all four have */
  double norm_epsilon;              /* of the norms of heads; 0: AD_NORM_EPSILON */
  ad_rotary_scaling rotary_scaling; /* factor 0: none */
} ad_attention_shape;
AD_API ad_attention_layer ad_attention_declare(ad_declarations *to, const char *path, const ad_attention_shape *shape);
AD_API ad_tensor *ad_attention_forward(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer,
                                       ad_tensor *x);
/* Keys and values of the tokens of one sequence that a layer has read, so that each new token is computed once. */
typedef struct ad_kept_keys ad_kept_keys;
AD_API AD_CHECKED ad_status ad_kept_keys_create(ad_kept_keys **out);
AD_API void ad_kept_keys_destroy(ad_kept_keys *kept); /* NULL allowed */
AD_API void ad_kept_keys_forget(ad_kept_keys *kept);  /* for another sequence; the memory stays */
/* ad_attention_forward of the tokens [1, rows, d_model] that follow those whose keys are kept; theirs are added to
 * them. The tape continues at that position (ad_tape_continue). Nothing goes back through it: what is kept is constant.
 * On one rank. kept NULL: ad_attention_forward. */
AD_API ad_tensor *ad_attention_continue(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer,
                                        ad_tensor *x, ad_kept_keys *kept);

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
AD_API ad_mlp_layer ad_mlp_declare(ad_declarations *to, const char *path, const ad_mlp_shape *shape);
AD_API ad_tensor *ad_mlp_forward(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);
/* Between entering and leaving tp: x is R there, the result P. */
AD_API ad_tensor *ad_mlp_products(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);

/* The deviation at which a product with a matrix of `in` rows keeps the size of its input. */
AD_API double ad_deviation_keeping_size(int64_t in);

#if defined(__cplusplus)
}
#endif
#endif
