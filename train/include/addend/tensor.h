/* Tensors on a tape: operations carry types forward and gradients of the dual type backward. An operation returns a
 * tensor and never fails in the middle of an expression. The first error sticks to the tape with its call site; later
 * operations return dead tensors, and ad_backward or ad_tape_status reports the error.
 *
 * For authors of programs. Only one thread at a time may use a tape, its tensors and its comm. */
#ifndef ADDEND_TENSOR_H
#define ADDEND_TENSOR_H
#include "addend/bridge.h"
#include "addend/reduce.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_tape ad_tape;
typedef struct ad_tensor ad_tensor; /* belongs to its tape until ad_tape_reset */

typedef enum ad_edge { AD_BEGINS, AD_ENDS } ad_edge; /* the beginning and the end of a pass */

typedef struct ad_tape_options {
  size_t size; /* sizeof(ad_tape_options) */
  /* AD_F32 (default), AD_F64 or AD_BF16. On a tape of bf16, products read and write bf16. f32 (ad_dtype_wide) is used
   * for losses, statistics, the residual stream, parameters that have one dimension or are `wide`, and the gradients of
   * all parameters. */
  ad_dtype dtype;
  ad_dtype residual; /* dtype of the residual stream: `dtype`, or its wide dtype (default) */
  /* called when a pass begins and ends, for traces; NULL allowed */
  void (*trace)(void *context, ad_pass pass, ad_edge edge);
  void *trace_context;
  /* For backend dry, where no scores exist. 0: tokens choose experts evenly. Above 0, the worst case for this rank:
   * every other rank has this many tokens, and all of them choose as many of this rank's experts as they can
   * (ad_dispatch of routing.h). */
  size_t crowd;
  /* Patterns (fnmatch without flags) of the layers that run again in backward (ad_recompute), borrowed; 0: none does */
  const char *const *recompute;
  size_t recompute_count;
} ad_tape_options;

/* A module's parameters for a tape: where their values are and where their gradients go. Borrowed until the tape's
 * reset. One tape may use the parameters of several modules. */
typedef struct ad_parameters {
  size_t size;                   /* sizeof(ad_parameters) */
  const ad_array *const *values; /* in their compute layouts; their data pointer is read at each use */
  size_t count;
  ad_reducer *reducer; /* gets the gradients of the parameters; NULL: gradients stay on the tape (ad_grad) */
  /* Called before and after each use of a parameter, in forward and, if its elements are read there, in backward.
   * Between the two calls the parameter's array has data. Uses may nest. NULL: the array always has data. */
  ad_status (*acquire)(void *context, size_t param);
  void (*release)(void *context, size_t param);
  void *context;
  /* Called, if there is no reducer, with each parameter's complete gradient during backward. NULL allowed. */
  void (*gradient)(void *context, size_t param, const ad_array *grad);
  void *gradient_context;
  /* [count]: 1 if the parameter is frozen: it is a constant of the tape, which has no gradient; NULL: none is */
  const unsigned char *frozen;
} ad_parameters;

/* Creates a tape. On backend dry it checks and plans (types, shapes, bytes, order of gradients) and computes
 * nothing. Several tapes may exist at the same time. Matrix products run on one thread, or on ADDEND_BLAS_THREADS
 * threads if the environment sets it. */
AD_API AD_CHECKED ad_status ad_tape_create(ad_comm *comm, const ad_mesh *mesh, const ad_tape_options *options,
                                           ad_tape **out);
AD_API void ad_tape_destroy(ad_tape *tape);
AD_API void ad_tape_reset(ad_tape *tape); /* forgets every tensor and the error; keeps the memory */
/* Returns the tape's first error, or AD_OK; the call puts the error's text into ad_last_error(). */
AD_API ad_status ad_tape_status(const ad_tape *tape);
AD_API ad_dtype ad_tape_dtype(const ad_tape *tape);
/* Returns the dtype of the residual stream. */
AD_API ad_dtype ad_tape_residual(const ad_tape *tape);
AD_API ad_comm *ad_tape_comm(const ad_tape *tape);       /* returns the tape's comm; NULL for a NULL tape */
AD_API const ad_mesh *ad_tape_mesh(const ad_tape *tape); /* returns the tape's mesh; NULL for a NULL tape */
/* Returns the most bytes that the tape's values have taken together since the tape was created; on backend dry the
 * bytes that they would have taken. */
AD_API size_t ad_tape_peak_bytes(const ad_tape *tape);
/* For a model that could not make a value: makes the error, with the text of ad_last_error(), stick to the tape, unless
 * an earlier error sticks to it already. Returns a dead tensor, or NULL for a NULL tape. AD_OK is no error and becomes
 * AD_INVALID. */
AD_API ad_tensor *ad_tape_fail(ad_tape *tape, ad_status status);

/* Makes a leaf without a gradient. The array is borrowed until reset. Its dtype is the tape's or the tape's wide dtype,
 * or AD_I32 for indices. Its mesh is the tape's or another view of the same ranks. */
AD_API ad_tensor *ad_constant_at(ad_tape *tape, const ad_array *value, const char *site);
/* Makes a leaf for a value that arrived from another tape or another mesh. It carries a gradient: ad_grad returns it
 * after backward, and ad_backward_from can continue with it where the value came from. The array is as for ad_constant,
 * but not of indices. */
AD_API ad_tensor *ad_input_at(ad_tape *tape, const ad_array *value, const char *site);
/* Returns the leaf of parameter `param` of `from`, with its reducer. Operations that use the same parameter share one
 * leaf. Call ad_parameter once for each parameter and microbatch. A frozen parameter's leaf has no gradient. */
AD_API ad_tensor *ad_parameter_at(ad_tape *tape, const ad_parameters *from, size_t param, const char *site);
#define ad_constant(...) ad_constant_at(__VA_ARGS__, AD_HERE)
#define ad_input(...) ad_input_at(__VA_ARGS__, AD_HERE)
#define ad_parameter(...) ad_parameter_at(__VA_ARGS__, AD_HERE)

/* returns the tensor's value; NULL for a dead tensor */
AD_API const ad_array *ad_tensor_array(const ad_tensor *tensor);
/* Returns the gradient, after ad_backward, of a leaf or of a tensor marked by ad_keep; NULL if there is none. */
AD_API const ad_array *ad_grad(const ad_tensor *tensor);
/* Keeps a tensor's gradient readable after ad_backward, summed over the starts of backward. A leaf's gradient is
 * kept without this call, unless the reducer took it. */
AD_API void ad_keep(ad_tensor *tensor);
/* For values that have no gradient because they were computed from frozen parameters: gives back the memory of those that
 * were recorded after `first` and before `last`, as far as neither `last` nor a backward uses it. The caller promises to
 * use none of them again; an operation on one is AD_INVALID. Scalars, such as losses, stay. Does nothing if `last` has
 * a gradient. */
AD_API void ad_forget(const ad_tensor *first, ad_tensor *last);
/* Says that the operations recorded after `first`, which enters a layer, up to `last`, which leaves it, are the layer
 * called `layer`. If a pattern of the tape's options matches the name, their values and what they saved are given back
 * now. When backward reaches the layer, those of its operations run again that backward reads, from the same records:
 * with the same bits, the same random numbers, the same experts and rows; so gradients have the bits that they have
 * without. What stays: values without a gradient (counts), what was chosen (ad_top_k), scalars, such as losses, and
 * results of operations that say so (`keeps` or `makes_memory` of ad_operation). Every rank of the tape's mesh must make
 * the call. The caller promises to use none of the values given back again: an operation on one is AD_INVALID. Does
 * nothing if `last` has no gradient. */
AD_API void ad_recompute_at(const ad_tensor *first, ad_tensor *last, const char *layer, const char *site);
#define ad_recompute(...) ad_recompute_at(__VA_ARGS__, AD_HERE)
/* returns the value of this rank's replica; NaN if the tensor is no scalar */
AD_API double ad_tensor_scalar(const ad_tensor *tensor);

/* Runs backward, with seed 1, from a scalar that is P or I on every axis (the loss). If the loss has another type, the
 * error AD_TYPE names a repair. Gradients of parameters go to the reducer as soon as they are complete. On a failed
 * tape: reports the error to the group (ad_comm_fail) and returns it. */
AD_API AD_CHECKED ad_status ad_backward_at(ad_tape *tape, ad_tensor *loss, const char *site);
#define ad_backward(...) ad_backward_at(__VA_ARGS__, AD_HERE)
typedef enum ad_start { AD_MORE_STARTS, AD_LAST_START, AD_INPUTS_START } ad_start;
/* One start of backward, from n tensors together. gradients[i] is the gradient that arrives for outputs[i], with its
 * shape and dtype and the dual of its layout (AD_TYPE otherwise); borrowed for the call. If gradients[i] or `gradients`
 * is NULL, outputs[i] is a loss as for ad_backward.
 *
 * Several starts may follow each other on one tape. Gradients add up over the starts. Those of parameters, including
 * parameters that only an earlier start reached, go to their reducers in the last start (AD_LAST_START) and are kept on
 * the tape until then. So once a tape has had its first start, it must have its last start before its reducers end the
 * microbatch.
 *
 * AD_INPUTS_START is a last start that is the first of two passes: it computes the gradients of inputs and of
 * everything made with an input; ad_backward_weights computes the others.
 *
 * AD_INVALID: a start after the last one, an output that is no tensor of this tape, or a start that reaches no
 * parameter and no input. */
AD_API AD_CHECKED ad_status ad_backward_from_at(ad_tape *tape, ad_tensor *const *outputs,
                                                const ad_array *const *gradients, size_t n, ad_start start,
                                                const char *site);
#define ad_backward_from(...) ad_backward_from_at(__VA_ARGS__, AD_HERE)
/* The second pass, at any time after an AD_INPUTS_START. It computes the gradients of everything that only parameters
 * reach: of parameters, and of their converted values. The backward of an operation on both (x and a weight) is called
 * in each pass. Between the two passes other tapes may run forward and backward. This tape keeps borrowing all memory
 * that it was given: none may be freed. The collectives of a pass run during that pass, so all ranks must call passes
 * in the same order.
 *
 * The reducers take the gradients. Each must be in a microbatch. Before the second pass of every tape that had a first
 * one, a reducer must neither end a microbatch with AD_SYNC_ALL nor finish. The two passes together do what a single
 * start does, bit for bit; over several tapes gradients add up in the order of their second passes.
 *
 * AD_INVALID: there was no AD_INPUTS_START before, or its second pass has already run. */
AD_API AD_CHECKED ad_status ad_backward_weights_at(ad_tape *tape, const char *site);
#define ad_backward_weights(...) ad_backward_weights_at(__VA_ARGS__, AD_HERE)

/* ---- local operations (law 3) ----
 * Shapes are those of full values, last dimension fastest. All operands have one dtype, and the result has the same,
 * unless the operation's comment says otherwise. "Wide" means f32 on a tape of bf16, and the tape's own dtype
 * otherwise. */
/* Rounds x once to the tape's own dtype or its wide dtype; returns x itself if it has that dtype already. */
AD_API ad_tensor *ad_to_dtype_at(ad_tape *tape, ad_tensor *x, ad_dtype dtype, const char *site);
/* a + b, elementwise; same shapes */
AD_API ad_tensor *ad_add_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site);
/* x [..., n] plus row [n] added to every row, as a bias. Law 3 as for ad_add: if x is P, row must be P as well
 * (`once`), because otherwise every rank would add the full row. */
AD_API ad_tensor *ad_add_row_at(ad_tape *tape, ad_tensor *x, ad_tensor *row, const char *site);
AD_API ad_tensor *ad_multiply_at(ad_tape *tape, ad_tensor *a, ad_tensor *b,
                                 const char *site); /* a * b, elementwise; same shapes */
/* x [..., n] with each row multiplied by its own factor; factors is [...]. */
AD_API ad_tensor *ad_scale_rows_at(ad_tape *tape, ad_tensor *x, ad_tensor *factors, const char *site);
/* a times a finite number, the same on all ranks. To divide by a count use ad_divide, which knows whether the count
 * was summed. */
AD_API ad_tensor *ad_scale_at(ad_tape *tape, ad_tensor *a, double factor, const char *site);
/* x times `factor`, a tensor of one element [1], such as a learned temperature; the factor is wide. AD_INVALID if it
 * has another number of elements. */
AD_API ad_tensor *ad_scale_by_at(ad_tape *tape, ad_tensor *x, ad_tensor *factor, const char *site);
/* a divided by the count's total over microbatches and ranks (law 5); waits for the count's sum if it is in flight.
 * AD_TYPE while the count is still P on an axis: until its sum was posted and waited for. If the total is 0, the result
 * and the gradient are 0. */
AD_API ad_tensor *ad_divide_at(ad_tape *tape, ad_tensor *a, const ad_count *count, const char *site);
AD_API ad_tensor *ad_sum_at(ad_tape *tape, ad_tensor *a, const char *site); /* sum over all dimensions -> scalar */
/* Return the sum, or the mean, along one dimension, which disappears: [a, b, c] over dimension 1 -> [a, c]. The result
 * is wide. The mean divides by the full size of the dimension. If the dimension is sharded, the result is P: each rank
 * has an addend. */
AD_API ad_tensor *ad_sum_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
AD_API ad_tensor *ad_mean_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
/* Returns the maximum along a dimension, which must be full. The gradient goes only to the largest element; if several
 * are equal, to the first of them. */
AD_API ad_tensor *ad_max_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
/* Returns the L2 norm, the root of the sum of squares, along a dimension, which must be full and disappears; the result
 * is wide. Where the norm is 0, its gradient is 0. */
AD_API ad_tensor *ad_norm_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
/* Returns the product y = x w: x [..., k] and w [k, n] -> [..., n]. */
AD_API ad_tensor *ad_linear_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const char *site);
/* Returns the product y = x w^T: x [..., k] and w [n, k] -> [..., n]. For a head that is tied to its embedding. */
AD_API ad_tensor *ad_linear_transposed_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const char *site);
/* Looks up rows: indices i32 [batch, seq], table [vocabulary, d] -> [batch, seq, d]. An index outside the table is
 * AD_INVALID, naming the index. If the table is sharded along the vocabulary (S0), each rank looks up its own rows, and
 * the result is P on that axis. */
AD_API ad_tensor *ad_embedding_at(ad_tape *tape, ad_tensor *table, ad_tensor *indices, const char *site);
/* RMSNorm: x / sqrt(mean(x^2) + epsilon) * weight over the last dimension; x [..., d], weight [d]. Zhang and Sennrich
 * 2019. */
AD_API ad_tensor *ad_rms_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, double epsilon, const char *site);
/* RMSNorm without a weight: x / sqrt(mean(x^2) + epsilon) over the last dimension. */
AD_API ad_tensor *ad_rms_norm_unweighted_at(ad_tape *tape, ad_tensor *x, double epsilon, const char *site);
/* LayerNorm: (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight + bias over the last dimension, which must
 * be full; x [..., d], weight and bias [d]. Ba et al. 2016. */
AD_API ad_tensor *ad_layer_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, ad_tensor *bias, double epsilon,
                                   const char *site);
/* Fills this rank's part of an array [samples, ...], f32 or f64, with random numbers in [0, 1). Each number depends
 * only on the seed, the name, the step, the number of its sample (`first` is the number of the array's first sample)
 * and its index within the sample. Therefore every mesh, every split of a batch into microbatches and both dtypes get
 * the same numbers. Element e of sample i (e counts row by row within the sample) is floor(r / 2^40) / 2^24; r is the
 * first number of the draw (s, i, e), and s the first number of the draw (seed, XXH64(name), step). data.h defines
 * draws (seed, stream, index). AD_TYPE if the array is P or V on an axis. */
#define ad_array_uniform(...) ad_array_uniform_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_array_uniform_at(const ad_comm *comm, uint64_t seed, const char *name, int64_t step,
                                                int64_t first, ad_array *array, const char *site);
/* Dropout: each element of x [samples, ...] becomes 0 with this probability (0 to below 1), and is divided by 1 -
 * probability otherwise. Element i of a sample is dropped if its number of ad_array_uniform is below the
 * probability. That number depends on the seed, the name (use a different one for each place in a model), the step, the
 * number of the sample (`first` is that of x's first sample) and i. So every mesh, every division of a batch into
 * microbatches and every dtype drops the same elements. AD_TYPE if x is V, because each rank then has its own
 * values. */
AD_API ad_tensor *ad_dropout_at(ad_tape *tape, ad_tensor *x, double probability, uint64_t seed, const char *name,
                                int64_t step, int64_t first, const char *site);
/* ad_rms_norm over each head of x [batch, seq, heads*head_dim], weight [head_dim]. Sharding must not split a head. */
AD_API ad_tensor *ad_head_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, double epsilon, const char *site);
/* x [batch, seq, d] with its first n positions replaced by front [batch, n, d]: for embeddings of inputs that are not
 * tokens, such as pictures. x and front have the same layout, with the sequence full. */
AD_API ad_tensor *ad_place_at(ad_tape *tape, ad_tensor *x, ad_tensor *front, const char *site);
/* ad_concat joins n values (1 to 4096) along dimension `dim`, which must be full; their other dimensions must be equal.
 * Law 3 as for ad_add: all are P, or none. ad_slice is the inverse: it takes elements first .. first + count - 1 of
 * dimension `dim`. Dimensions are numbered from 0; -1 is the last. */
AD_API ad_tensor *ad_concat_at(ad_tape *tape, ad_tensor *const *parts, size_t n, int dim, const char *site);
AD_API ad_tensor *ad_slice_at(ad_tape *tape, ad_tensor *x, int dim, int64_t first, int64_t count, const char *site);
/* x with two of its dimensions exchanged; the sharding moves with the dimensions. If dim is other_dim the result is
 * x. */
AD_API ad_tensor *ad_transpose_at(ad_tape *tape, ad_tensor *x, int dim, int other_dim, const char *site);
/* Returns the elements of x in another shape; no byte moves. The sharding stays if a dimension of the new shape begins
 * where the sharded dimension began and each rank's part consists of the same elements. For example S0 of [8, 6]
 * becomes S0 of [4, 2, 6] or [48] over 2 or 4 ranks, and S1 of [8, 6] becomes S1 of [8, 2, 3]. AD_TYPE otherwise, for
 * instance from S1 of [8, 6] to [48], or if uneven parts would have other elements: gather first. */
AD_API ad_tensor *ad_reshape_at(ad_tape *tape, ad_tensor *x, const ad_shape *shape, const char *site);
/* x [...] repeated for each sample: samples is i32 [n, seq] (only its size and sharding matter) -> [n, ...]. If samples
 * are sharded x is R, and each rank's samples leave an addend of its gradient. */
AD_API ad_tensor *ad_repeat_at(ad_tape *tape, ad_tensor *x, ad_tensor *samples, const char *site);
/* Rotary position embedding of x [batch, seq, heads*head_dim]: rotates the pairs (i, i + head_dim/2) by the angle
 * position * base^(-2i/head_dim). Su et al. 2021. */
AD_API ad_tensor *ad_rotary_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base, const char *site);
/* Slower rotations for sequences longer than those on which a model was first trained, as in Llama 3.1 ("llama3" in
 * Hugging Face Transformers). A pair that turns by `frequency` at each position has the wavelength w = 2 pi / frequency
 * and makes turns = original_positions / w turns in a sequence of the first training. Its new frequency is
 *   frequency                                     if turns > high_turns
 *   frequency / factor                            if turns < low_turns
 *   s frequency + (1 - s) frequency / factor      in between, with s = (turns - low_turns) / (high_turns - low_turns)
 */
typedef struct ad_rotary_scaling {
  double factor; /* above 0; 0 means no scaling */
  /* above 0, low_turns < high_turns; Transformers calls them low_freq_factor and high_freq_factor */
  double low_turns, high_turns;
  double original_positions; /* above 0 */
} ad_rotary_scaling;
/* Like ad_rotary, with scaled frequencies; with scaling NULL the same as ad_rotary. */
AD_API ad_tensor *ad_rotary_scaled_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base,
                                      const ad_rotary_scaling *scaling, const char *site);
/* Causal attention, softmax(q k^T / sqrt(head_dim)) v: each position sees itself and those before it. q is [batch, seq,
 * heads*head_dim], k and v are [batch, seq, kv_heads*head_dim]; kv_heads divides heads, and head h uses head
 * h*kv_heads/heads of k and v (grouped heads, Ainslie et al. 2023). Keeps scores for one block of rows at a time, and
 * recomputes them in backward from the rows' maximum and sum (Dao et al. 2022). Scores that no position sees are not
 * computed.
 *
 * Layouts, by the dimension that is sharded:
 *   batch      q, k and v are sharded in the same way
 *   heads      k and v are sharded like q (each rank's heads of k and v must serve its own heads of q), or are full, R
 *   sequence   q is sharded, plainly or zigzag. k and v are sharded likewise on one axis, and go around its ranks:
 *              while one block is computed, the next arrives (ring attention, Liu et al. 2023), so that no rank has
 *              all of them at the same time; or k and v are full, R, as all_gather makes them */
AD_API ad_tensor *ad_attention_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                                  const char *site);
/* Attention without a mask, for encoders: each position sees all of its sequence. */
AD_API ad_tensor *ad_attention_all_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                                      const char *site);
/* SwiGLU: silu(gate) * up, elementwise. Shazeer 2020. */
AD_API ad_tensor *ad_swiglu_at(ad_tape *tape, ad_tensor *gate, ad_tensor *up, const char *site);
AD_API ad_tensor *ad_gelu_at(ad_tape *tape, ad_tensor *x, const char *site); /* 0.5 x (1 + erf(x / sqrt 2)) */
/* Elementwise functions, in any layout without P. The slope of relu at 0 is 0. ln and sqrt give NaN where they are
 * not defined. ln gives -infinity at 0, and the slopes of ln and sqrt are infinite there. Sigmoid has no arithmetic
 * in bf16, because scores decide which experts are chosen: apply it to wide values. */
AD_API ad_tensor *ad_relu_at(ad_tape *tape, ad_tensor *x, const char *site); /* max(x, 0) */
AD_API ad_tensor *ad_tanh_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_sigmoid_at(ad_tape *tape, ad_tensor *x, const char *site); /* 1 / (1 + exp(-x)) */
AD_API ad_tensor *ad_exp_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_ln_at(ad_tape *tape, ad_tensor *x, const char *site); /* natural logarithm */
AD_API ad_tensor *ad_sqrt_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_softmax_at(ad_tape *tape, ad_tensor *x, const char *site); /* softmax over the last dimension */
/* Divides each row by its sum, over the last dimension, which must be full: positive numbers become shares. */
AD_API ad_tensor *ad_shares_at(ad_tape *tape, ad_tensor *x, const char *site);
/* Cross-entropy: the sum over positions with target >= 0 of -log softmax(logits)[target], only the numerator of the
 * loss; logits [batch, seq, vocabulary], targets i32 [batch, seq]. If the vocabulary is sharded, the ranks gather three
 * numbers of each row and the result is I, as if all_gather S->I had gathered the logits, which never exist on one
 * rank. */
AD_API ad_tensor *ad_cross_entropy_at(ad_tape *tape, ad_tensor *logits, ad_tensor *targets, const char *site);

/* ---- distances between two values ---- */
/* Returns the numerator of a mean squared error: the sum over all elements of (a - b)^2. Divide it (ad_divide) by the
 * number of elements in the step, or by the count over which the mean is to be taken. */
AD_API ad_tensor *ad_squared_error_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site);
/* Returns the numerator of a binary cross-entropy: the sum over all elements of
 *   -y log sigmoid(x) - (1 - y) log(1 - sigmoid(x))
 * for logits x and targets y of the same shape. A target is a constant between 0 and 1. The loss and its gradient are
 * finite and exact for logits of any size. Divide it (ad_divide) as ad_squared_error. */
AD_API ad_tensor *ad_binary_cross_entropy_at(ad_tape *tape, ad_tensor *logits, ad_tensor *targets, const char *site);
/* Returns the numerator of a divergence: the sum over positions of KL(softmax(target) || softmax(logits)). logits and
 * target are [..., vocabulary], with the vocabulary full; the target is a constant. */
AD_API ad_tensor *ad_kl_divergence_at(ad_tape *tape, ad_tensor *logits, ad_tensor *target, const char *site);
#define ad_squared_error(...) ad_squared_error_at(__VA_ARGS__, AD_HERE)
#define ad_binary_cross_entropy(...) ad_binary_cross_entropy_at(__VA_ARGS__, AD_HERE)
#define ad_kl_divergence(...) ad_kl_divergence_at(__VA_ARGS__, AD_HERE)

/* ---- transitions (law 2) ----
 * Moves x to the type `to` on `axes` (as in ad_axes_parse). If x has different types on these axes, one type is moved
 * after another. If the mesh names at least one of the axes, the axes that it does not name are skipped where they need
 * no move. A failed tape reports its error to the group here, because other ranks may be waiting. */
AD_API ad_tensor *ad_move_at(ad_tape *tape, ad_tensor *x, ad_move move, const char *axes, ad_type to, const char *site);
/* Returns the value of x on another factorisation of its ranks, as ad_layout_view allows; no byte moves. Backward views
 * the gradient on x's mesh again. Borrows the view until reset. */
AD_API ad_tensor *ad_view_at(ad_tape *tape, ad_tensor *x, const ad_mesh *view, const char *site);

/* Brings x, which has the layout of the bridge's source, over the bridge to the destination on another mesh of the same
 * ranks. The gradient is summed over the axes on which the destination is R, and goes back. Borrows the bridge until
 * reset. */
AD_API ad_tensor *ad_transfer_tensor_at(ad_tape *tape, ad_tensor *x, ad_bridge *bridge, const char *site);
#define ad_transfer_tensor(...) ad_transfer_tensor_at(__VA_ARGS__, AD_HERE)

/* ---- to_local and from_local: code outside the type rules ---- */
/* Prepares x for code that only knows local buffers: ad_tensor_array of the returned tensor is this rank's part.
 * `gradient` is the layout of the gradient that this code will later pass to ad_backward_from for the returned tensor;
 * `gradient` thus determines how the code uses the value. If `gradient` is the dual of x's type, nothing happens.
 * Otherwise an entry of law 2 that moves no bytes brings x to the dual of `gradient`: I->R for a gradient that is P
 * (each rank leaves an addend, and the entry's backward sums them), S(d)->V or R->V for a gradient that is V. NULL: the
 * dual on every axis. AD_TYPE for a P without a stated gradient, and if there is no such entry. */
AD_API ad_tensor *ad_to_local_at(ad_tape *tape, ad_tensor *x, const char *gradient, const char *site);
/* Brings a value from code that only knows local buffers back to the tape. Takes the array that the code made, with
 * its layout, and the layout in which the code wants the value's gradient. *leaf gets that gradient (ad_grad, after
 * backward); leaf NULL: no gradient is wanted. An entry of law 2 joins the two types as in ad_to_local: for example
 * I->R if all ranks made identical copies of the value (gradient: I) and its users leave addends. */
AD_API ad_tensor *ad_from_local_at(ad_tape *tape, const ad_array *value, const char *gradient, ad_tensor **leaf,
                                   const char *site);
#define ad_to_local(...) ad_to_local_at(__VA_ARGS__, AD_HERE)
#define ad_from_local(...) ad_from_local_at(__VA_ARGS__, AD_HERE)

#define ad_to_dtype(...) ad_to_dtype_at(__VA_ARGS__, AD_HERE)
#define ad_add(...) ad_add_at(__VA_ARGS__, AD_HERE)
#define ad_add_row(...) ad_add_row_at(__VA_ARGS__, AD_HERE)
#define ad_multiply(...) ad_multiply_at(__VA_ARGS__, AD_HERE)
#define ad_scale_rows(...) ad_scale_rows_at(__VA_ARGS__, AD_HERE)
#define ad_scale(...) ad_scale_at(__VA_ARGS__, AD_HERE)
#define ad_scale_by(...) ad_scale_by_at(__VA_ARGS__, AD_HERE)
#define ad_divide(...) ad_divide_at(__VA_ARGS__, AD_HERE)
#define ad_sum(...) ad_sum_at(__VA_ARGS__, AD_HERE)
#define ad_sum_over(...) ad_sum_over_at(__VA_ARGS__, AD_HERE)
#define ad_mean_over(...) ad_mean_over_at(__VA_ARGS__, AD_HERE)
#define ad_max_over(...) ad_max_over_at(__VA_ARGS__, AD_HERE)
#define ad_norm_over(...) ad_norm_over_at(__VA_ARGS__, AD_HERE)
#define ad_linear(...) ad_linear_at(__VA_ARGS__, AD_HERE)
#define ad_linear_transposed(...) ad_linear_transposed_at(__VA_ARGS__, AD_HERE)
#define ad_embedding(...) ad_embedding_at(__VA_ARGS__, AD_HERE)
#define ad_rms_norm(...) ad_rms_norm_at(__VA_ARGS__, AD_HERE)
#define ad_rms_norm_unweighted(...) ad_rms_norm_unweighted_at(__VA_ARGS__, AD_HERE)
#define ad_layer_norm(...) ad_layer_norm_at(__VA_ARGS__, AD_HERE)
#define ad_dropout(...) ad_dropout_at(__VA_ARGS__, AD_HERE)
#define ad_head_norm(...) ad_head_norm_at(__VA_ARGS__, AD_HERE)
#define ad_place(...) ad_place_at(__VA_ARGS__, AD_HERE)
#define ad_concat(...) ad_concat_at(__VA_ARGS__, AD_HERE)
#define ad_slice(...) ad_slice_at(__VA_ARGS__, AD_HERE)
#define ad_transpose(...) ad_transpose_at(__VA_ARGS__, AD_HERE)
#define ad_reshape(...) ad_reshape_at(__VA_ARGS__, AD_HERE)
#define ad_repeat(...) ad_repeat_at(__VA_ARGS__, AD_HERE)
#define ad_rotary(...) ad_rotary_at(__VA_ARGS__, AD_HERE)
#define ad_rotary_scaled(...) ad_rotary_scaled_at(__VA_ARGS__, AD_HERE)
#define ad_attention(...) ad_attention_at(__VA_ARGS__, AD_HERE)
#define ad_attention_all(...) ad_attention_all_at(__VA_ARGS__, AD_HERE)
#define ad_swiglu(...) ad_swiglu_at(__VA_ARGS__, AD_HERE)
#define ad_gelu(...) ad_gelu_at(__VA_ARGS__, AD_HERE)
#define ad_relu(...) ad_relu_at(__VA_ARGS__, AD_HERE)
#define ad_tanh(...) ad_tanh_at(__VA_ARGS__, AD_HERE)
#define ad_sigmoid(...) ad_sigmoid_at(__VA_ARGS__, AD_HERE)
#define ad_exp(...) ad_exp_at(__VA_ARGS__, AD_HERE)
#define ad_ln(...) ad_ln_at(__VA_ARGS__, AD_HERE)
#define ad_sqrt(...) ad_sqrt_at(__VA_ARGS__, AD_HERE)
#define ad_softmax(...) ad_softmax_at(__VA_ARGS__, AD_HERE)
#define ad_shares(...) ad_shares_at(__VA_ARGS__, AD_HERE)
#define ad_cross_entropy(...) ad_cross_entropy_at(__VA_ARGS__, AD_HERE)
#define ad_all_reduce(t, x, axes, to) ad_move_at((t), (x), AD_MOVE_ALL_REDUCE, (axes), (to), AD_HERE)
#define ad_reduce_scatter(t, x, axes, to) ad_move_at((t), (x), AD_MOVE_REDUCE_SCATTER, (axes), (to), AD_HERE)
#define ad_all_gather(t, x, axes, to) ad_move_at((t), (x), AD_MOVE_ALL_GATHER, (axes), (to), AD_HERE)
#define ad_all_to_all(t, x, axes, to) ad_move_at((t), (x), AD_MOVE_ALL_TO_ALL, (axes), (to), AD_HERE)
#define ad_convert(t, x, axes, to) ad_move_at((t), (x), AD_MOVE_CONVERT, (axes), (to), AD_HERE)
#define ad_once(t, x, axes) ad_move_at((t), (x), AD_MOVE_ONCE, (axes), AD_P, AD_HERE)
#define ad_declare(t, x, axes, to) ad_move_at((t), (x), AD_MOVE_DECLARE, (axes), (to), AD_HERE)
#define ad_view(...) ad_view_at(__VA_ARGS__, AD_HERE)

#if defined(__cplusplus)
}
#endif
#endif
