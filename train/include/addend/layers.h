/* Layers as formulas over numbered parameters. A layer is a struct of parameter indices; its `declare` function adds
 * the parameters to a model's list, and its `forward` function is its formula. `params[i]` is the leaf of parameter i
 * on the tape. x is [batch, seq, d_model]; on `tp` it is I or sharded along the sequence, as ad_parallel says.
 *
 * For authors of programs. Only one thread at a time may use a tape, and only one may use a list of declarations. */
#ifndef ADDEND_LAYERS_H
#define ADDEND_LAYERS_H
#include "addend/parameter.h"
#include "addend/tensor.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* ---- declaring a model's parameters and states ---- */

/* The list of parameters and states that a model declares. The first failure of a declaration sticks to the list and is
 * reported once, at the end (ad_program_add_declared), so that single declarations need no checks. */
typedef struct ad_declarations {
  /* The layout of a parameter that a layer does not shard: R on dp and cp, where each rank leaves an addend of its
   * gradient; I on the other axes that the mesh names; R on axes that the mesh does not name. */
  ad_layout replicated;
  int unit; /* the unit (ad_param_spec) of every parameter declared from now on */
  /* the list owns the names; each storage layout is the compute layout; each precision policy is empty */
  ad_param_spec *list;
  size_t count, capacity;
  ad_state_spec *states; /* the list owns their names */
  size_t state_count;
  ad_status status; /* the first failure; its message is in ad_last_error() until the next failure */
} ad_declarations;

/* Returns an empty list. Borrows the mesh. */
AD_API ad_declarations ad_declarations_on(const ad_mesh *mesh);
AD_API void ad_declarations_release(ad_declarations *list);

/* Adds a parameter and returns its index. `spec` has the layer's own choices: shape, layout, `sharded`, decay and
 * initial values. The parameter's name becomes PATH.NAME, its unit is the list's. */
AD_API size_t ad_declare_param(ad_declarations *to, const char *path, const char *name, ad_param_spec spec);
/* Adds a state and returns its index; `spec` has the state's dtype, shape, layout and first value. */
AD_API size_t ad_declare_state(ad_declarations *to, const char *path, const char *name, ad_state_spec spec);

/* How layers are laid out on the axes tp and cp; the same for all layers of a model. */
typedef struct ad_parallel {
  int sequence; /* type of the residual stream on tp; 1: sharded along the sequence (S1); 0: I */
  /* type on tp of the weights of norms, if the stream is sharded; 1: I, converted I->R at each use; 0: R */
  int converts;
  int gathers_keys; /* how keys and values reach all ranks of cp; 1: they are gathered; 0: they go around the ring */
} ad_parallel;

/* ---- tensor parallelism ----
 * How activations enter and leave a region where matrices are sharded over `tp`. On a mesh that does not name `tp`
 * these functions do nothing. */

/* Outside the region the residual stream [batch, seq, d] is I on `tp` or, with sequence parallelism, sharded along the
 * sequence (S1). Inside, values are R: each rank's columns leave an addend of the gradient.
 *   enter: I->R by convert (backward all_reduce P->I), or S1->R by all_gather (backward reduce_scatter P->S1)
 *   leave: P->I by all_reduce (backward convert I->R), or P->S1 by reduce_scatter (backward all_gather S1->R) */
AD_API ad_tensor *ad_tp_enter_at(ad_tape *t, ad_tensor *x, ad_parallel parallel, const char *site);
AD_API ad_tensor *ad_tp_leave_at(ad_tape *t, ad_tensor *x, ad_parallel parallel, const char *site);
AD_API int ad_tp_is_named(const ad_tensor *x); /* returns 1 if the mesh of x names tp */
#define ad_tp_enter(t, x, parallel) ad_tp_enter_at((t), (x), (parallel), AD_HERE)
#define ad_tp_leave(t, x, parallel) ad_tp_leave_at((t), (x), (parallel), AD_HERE)
/* Sets the layout's type on tp to `type`, if the layout's mesh names tp. */
AD_API void ad_tp_type(ad_layout *layout, ad_type type);

/* ---- layers: structures and their declare and forward functions ---- */

/* Which dimension of a matrix [in, out] is sharded over tp. */
typedef enum ad_linear_sharding {
  AD_SHARD_COLUMNS, /* W is S1: x is R, y is sharded along its last dimension */
  AD_SHARD_ROWS,    /* W is S0: x is sharded along its last dimension, y is P */
  AD_SHARD_NOTHING  /* W is R: x and y are R; each rank uses its own part of y, and leaves addends */
} ad_linear_sharding;

/* A function that a program uses instead of a product x W; `weight` is the parameter index of W. */
typedef struct ad_stand_in {
  ad_tensor *(*product)(void *own, ad_tape *t, size_t weight, ad_tensor *x, ad_tensor *w);
  void *own;
} ad_stand_in;

/* y = x W + b with W [in, out] and b [out]; b is optional. */
typedef struct ad_linear_layer {
  size_t weight, bias;
  int has_bias;
  ad_linear_sharding sharding;
  const ad_stand_in *stand_in; /* borrowed; NULL: the ordinary product */
} ad_linear_layer;
typedef struct ad_linear_shape {
  int64_t in, out;
  ad_linear_sharding sharding;
  int has_bias;
  /* standard deviation of the initial values of W */
  double deviation;
} ad_linear_shape;
/* Declares PATH.NAME, the weight, and PATH.NAME_bias if the shape has a bias. */
AD_API ad_linear_layer ad_linear_declare(ad_declarations *to, const char *path, const char *name,
                                         const ad_linear_shape *shape);
/* Returns x W, plus the bias if there is one; x and the result have the layouts of ad_linear_sharding. */
AD_API ad_tensor *ad_linear_forward(ad_tape *t, ad_tensor *const *params, const ad_linear_layer *layer, ad_tensor *x);

/* The embedding: looks up rows of a table [vocabulary, d_model], sharded over tp. If the head is tied, the layer also
 * multiplies the hidden states by these rows. */
typedef struct ad_embedding_layer {
  size_t table;
  ad_parallel parallel;
} ad_embedding_layer;
typedef struct ad_embedding_shape {
  int64_t vocabulary, d_model;
  /* standard deviation of the table's initial values */
  double deviation;
  int tied; /* 1: the table is the head, too */
} ad_embedding_shape;
/* Declares PATH.weight, the table. */
AD_API ad_embedding_layer ad_embedding_declare(ad_declarations *to, const char *path, const ad_embedding_shape *shape,
                                               ad_parallel parallel);
/* Looks up tokens [batch, seq] in the table; returns the residual stream [batch, seq, d_model]. */
AD_API ad_tensor *ad_embedding_forward(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                       ad_tensor *tokens);
/* Returns logits, sharded along the vocabulary over tp; x is R on tp. */
AD_API ad_tensor *ad_embedding_logits(ad_tape *t, ad_tensor *const *params, const ad_embedding_layer *layer,
                                      ad_tensor *x);

/* An RMSNorm of the residual stream. */
typedef struct ad_norm_layer {
  size_t weight;
  int converts;
  double epsilon; /* added to the mean square of a row; 0, as ad_norm_declare sets it, means AD_NORM_EPSILON */
} ad_norm_layer;
#define AD_NORM_EPSILON 1e-5
/* Declares PATH.NAME, the weight [d_model] of the norm. */
AD_API ad_norm_layer ad_norm_declare(ad_declarations *to, const char *path, const char *name, int64_t d_model,
                                     ad_parallel parallel);
AD_API ad_tensor *ad_norm_forward(ad_tape *t, ad_tensor *const *params, const ad_norm_layer *layer, ad_tensor *x);

/* Attention with rotary positions: attention(rotary(norm(x Wq)), rotary(norm(x Wk)), x Wv) Wo; the norms of each head
 * are optional. It is causal, or each position sees all positions.
 *   Wq       [d_model, heads*head_dim]
 *   Wk, Wv   [d_model, kv_heads*head_dim]
 *   Wo       [heads*head_dim, d_model]
 * Over tp the heads are sharded. Heads of k and v are sharded too if tp divides their number; otherwise every rank has
 * all of them (R). */
typedef struct ad_attention_layer {
  ad_linear_layer wq, wk, wv, wo;
  size_t q_norm, k_norm;
  int has_norms, sees_all;
  int64_t head_dim;
  double rotary_base;
  ad_parallel parallel;
  double norm_epsilon; /* epsilon of the norms of heads */
  ad_rotary_scaling rotary_scaling;
} ad_attention_layer;
typedef struct ad_attention_shape {
  int64_t d_model, heads, kv_heads;
  double rotary_base, output_factor;
  int has_bias, has_norms;
  int sees_all; /* 1: no mask, each position sees all positions; 0: causal */
  ad_parallel parallel;
  int64_t head_dim;                 /* size of a head, even; 0: d_model / heads */
  int has_no_output_bias;           /* with has_bias; 1: only Wq, Wk and Wv have biases; 0: Wo has a bias, too */
  double norm_epsilon;              /* epsilon of the norms of heads; 0: AD_NORM_EPSILON */
  ad_rotary_scaling rotary_scaling; /* factor 0: no scaling */
} ad_attention_shape;
/* Declares the matrices, and the biases and head norms that the shape asks for. */
AD_API ad_attention_layer ad_attention_declare(ad_declarations *to, const char *path, const ad_attention_shape *shape);
/* Applies the layer to x [batch, seq, d_model], the residual stream; the result has the shape and layout of x. */
AD_API ad_tensor *ad_attention_forward(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer,
                                       ad_tensor *x);
/* A cache of the keys and values of one sequence's tokens that a layer has read, so that each new token is computed
 * once. A sampler makes it (ad_continued of program.h). */
typedef struct ad_kept_keys ad_kept_keys;
/* Like ad_attention_forward, for the tokens [1, rows, d_model] that follow those in the cache; their keys and values
 * are added to the cache. The tape must continue at that position, as a sampler's does. No gradient flows through
 * cached keys and values: they are constants. On one rank only. If `kept` is NULL, does the same as
 * ad_attention_forward. */
AD_API ad_tensor *ad_attention_continue(ad_tape *t, ad_tensor *const *params, const ad_attention_layer *layer,
                                        ad_tensor *x, ad_kept_keys *kept);

/* The MLP swiglu(x Wgate, x Wup) Wdown. */
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
/* Declares the matrices, and the biases if the shape asks for them. */
AD_API ad_mlp_layer ad_mlp_declare(ad_declarations *to, const char *path, const ad_mlp_shape *shape);
/* Applies the layer to x [batch, seq, d_model], the residual stream; the result has the shape and layout of x. */
AD_API ad_tensor *ad_mlp_forward(ad_tape *t, ad_tensor *const *params, const ad_mlp_layer *layer, ad_tensor *x);

/* Returns the standard deviation of a matrix with `in` rows at which a product with it keeps the size of its input. */
AD_API double ad_deviation_keeping_size(int64_t in);

#if defined(__cplusplus)
}
#endif
#endif
