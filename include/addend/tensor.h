/* Tensors on a tape: operations that carry types forward and gradients of dual type backward. Operations return a
 * tensor and never fail in the middle of an expression: the first error sticks to the tape with its call site, later
 * operations return a dead tensor, and ad_backward or ad_tape_status reports it. */
#ifndef ADDEND_TENSOR_H
#define ADDEND_TENSOR_H
#include "addend/bridge.h"
#include "addend/reduce.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_tape ad_tape;
typedef struct ad_tensor ad_tensor; /* belongs to its tape until ad_tape_reset */

typedef enum ad_edge { AD_BEGINS, AD_ENDS } ad_edge; /* of a pass */

typedef struct ad_tape_options {
  size_t size; /* sizeof(ad_tape_options) */
  /* AD_F32 (default), AD_F64 or AD_BF16. On a tape of bf16 what products read and write is bf16, and beside it stands
   * f32 (ad_dtype_wide): losses, statistics, the residual stream, parameters of one dimension and those that say
   * `wide`, and the gradients of all parameters. */
  ad_dtype dtype;
  ad_dtype residual; /* of the residual stream: `dtype`, or the wide one of it (default) */
  void (*trace)(void *context, ad_pass pass, ad_edge edge); /* for traces; NULL allowed */
  void *trace_context;
  /* On engine dry, where nobody has scores. 0: tokens choose experts evenly. Else the worst for this rank: each
   * other has so many tokens, and all choose as many of this rank's experts as they can (ad_dispatch). */
  size_t crowd;
} ad_tape_options;

/* A module's parameters as a tape sees them: where their values are and where their gradients go. Borrowed until the
 * tape's reset; one tape may use the parameters of several modules. */
typedef struct ad_parameters {
  size_t size;                   /* sizeof(ad_parameters) */
  const ad_array *const *values; /* in their compute layouts; their data is looked up at each use */
  size_t count;
  ad_reducer *reducer; /* takes the gradients; NULL: they stay on the tape (ad_grad) */
  /* Called before and after each use of a parameter, forward and backward (there where its elements are read); between
   * them the parameter's array has data. Uses may nest. NULL: it always has. */
  ad_status (*acquire)(void *context, size_t param);
  void (*release)(void *context, size_t param);
  void *context;
  /* Without a reducer: sees each parameter's complete gradient during backward. NULL allowed. */
  void (*gradient)(void *context, size_t param, const ad_array *grad);
  void *gradient_context;
} ad_parameters;

/* On engine dry the tape checks and plans (types, shapes, bytes, order of gradients) and computes nothing. Several
 * tapes may be alive at once. Matrix products run on one thread, or on as many as the environment's ADDEND_BLAS_THREADS
 * says. */
AD_API AD_CHECKED ad_status ad_tape_create(ad_comm *comm, const ad_mesh *mesh, const ad_tape_options *options,
                                           ad_tape **out);
AD_API void ad_tape_destroy(ad_tape *tape);
AD_API void ad_tape_reset(ad_tape *tape); /* forgets every tensor, keeps the memory; clears the error */
/* Until the next reset the tape's sequences go on where earlier ones ended: their first token has this position for
 * ad_rotary, and ad_attention takes so many more keys and values than rows, those of the tokens before. */
AD_API void ad_tape_continue(ad_tape *tape, int64_t position);
AD_API ad_status
ad_tape_status(const ad_tape *tape); /* the first error; its text is in ad_last_error() after this call */
AD_API ad_dtype ad_tape_dtype(const ad_tape *tape);
AD_API ad_dtype ad_tape_residual(const ad_tape *tape);
AD_API ad_comm *ad_tape_comm(const ad_tape *tape);       /* on which it was made; NULL of no tape */
AD_API const ad_mesh *ad_tape_mesh(const ad_tape *tape); /* NULL of no tape */
/* The most bytes that its values have taken at once since it was made; on engine dry, that they would take. */
AD_API size_t ad_tape_peak_bytes(const ad_tape *tape);
/* What a model hands on where it could not make a value: the error with the text of ad_last_error() sticks to the tape,
 * if none does yet, and what comes back is a dead tensor, NULL of no tape. AD_OK is no error: it becomes AD_INVALID. */
AD_API ad_tensor *ad_tape_fail(ad_tape *tape, ad_status status);

/* Leaves. The array is borrowed until reset; its dtype is the tape's or the wide one (a constant may also be AD_I32:
 * indices). Its mesh
 * is the tape's or another view of the same ranks. */
AD_API ad_tensor *ad_constant_at(ad_tape *tape, const ad_array *value, const char *site);
/* A value that arrived, from another tape or another mesh: it carries a gradient, which ad_grad gives after backward
 * and which can be sent back to where the value came from (ad_backward_from). */
AD_API ad_tensor *ad_input_at(ad_tape *tape, const ad_array *value, const char *site);
/* Parameter number `param` of `from` and of its reducer. A parameter used by several operations is one leaf: call once
 * per microbatch. */
AD_API ad_tensor *ad_parameter_at(ad_tape *tape, const ad_parameters *from, size_t param, const char *site);
#define ad_constant(...) ad_constant_at(__VA_ARGS__, AD_HERE)
#define ad_input(...) ad_input_at(__VA_ARGS__, AD_HERE)
#define ad_parameter(...) ad_parameter_at(__VA_ARGS__, AD_HERE)

AD_API const ad_array *ad_tensor_array(const ad_tensor *tensor); /* its value; NULL for a dead tensor */
AD_API const ad_array *ad_grad(
    const ad_tensor *tensor); /* after ad_backward, of a leaf or a value kept alive; NULL if none */
/* Its gradient stays readable after ad_backward, summed over the starts; a leaf's stays anyway, unless the reducer took
 * it. */
AD_API void ad_keep(ad_tensor *tensor);
AD_API double ad_tensor_scalar(const ad_tensor *tensor); /* of this rank's copy; NaN if it is no scalar */

/* Runs backward from a scalar that is P or I on every axis (the loss), seed 1. AD_TYPE names the repair otherwise.
 * Gradients of parameters go to the reducer as soon as they are complete. On a failed tape: tells the group
 * (ad_comm_fail) and returns the first error. */
AD_API AD_CHECKED ad_status ad_backward_at(ad_tape *tape, ad_tensor *loss, const char *site);
#define ad_backward(...) ad_backward_at(__VA_ARGS__, AD_HERE)
typedef enum ad_start { AD_MORE_STARTS, AD_LAST_START, AD_INPUTS_START } ad_start;
/* One start of backward, from n tensors at once. gradients[i] is what arrives for outputs[i]: its shape and dtype, and
 * the dual of its layout (AD_TYPE otherwise); borrowed for the call. NULL, or `gradients` NULL: outputs[i] is a loss,
 * as above. Several starts may follow each other on one tape: gradients add up over them, and those of parameters go to
 * their reducers in the last one (AD_LAST_START), also of parameters that only an earlier start reached; until then
 * they are on the tape. So a tape that began must come to its last start before its reducers end the microbatch.
 * AD_INPUTS_START is the last start too, in the first of two passes: it leaves the gradients of inputs and of all that
 * is made with one, and ad_backward_weights the rest. AD_INVALID: a start after the last, an output that is no tensor
 * of this tape, a start from which no parameter and no input is reached. */
AD_API AD_CHECKED ad_status ad_backward_from_at(ad_tape *tape, ad_tensor *const *outputs,
                                                const ad_array *const *gradients, size_t n, ad_start start,
                                                const char *site);
#define ad_backward_from(...) ad_backward_from_at(__VA_ARGS__, AD_HERE)
/* The second pass, at any time after an AD_INPUTS_START: the gradients of what only parameters reach, parameters
 * themselves and what they were converted to. An operation on both kinds (x and a weight) is called in either pass.
 * Between the two other tapes may go forward and back, and this tape keeps what is given to it: nothing borrowed may
 * go. The collectives of a pass run in that pass, so that all ranks call passes in one order. Reducers take the
 * gradients: each must be in a microbatch, and neither ends one with AD_SYNC_ALL nor finishes before the second pass of
 * every tape that went through the first. In both passes together a tape does what one start does, bit for bit; over
 * several tapes gradients add up in the order in which their second passes run.
 * AD_INVALID: no AD_INPUTS_START came before it, or one that it was called for already. */
AD_API AD_CHECKED ad_status ad_backward_weights_at(ad_tape *tape, const char *site);
#define ad_backward_weights(...) ad_backward_weights_at(__VA_ARGS__, AD_HERE)

/* Local operations (law 3). Shapes are of whole values; last dimension fastest. Operands are of one dtype, and so is
 * the result, unless it is said otherwise: on a tape of bf16 "wide" is f32, elsewhere the tape's own dtype. */
/* x in another dtype of the tape, its own or the wide one, rounded once; x itself where it is that already. */
AD_API ad_tensor *ad_to_dtype_at(ad_tape *tape, ad_tensor *x, ad_dtype dtype, const char *site);
AD_API ad_tensor *ad_add_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site); /* same shapes */
/* x [..., n] plus row [n] in every row: a bias. Law 3 as for ad_add: on a P the bias must be P as well (`once`), or it
 * would be added by every rank. */
AD_API ad_tensor *ad_add_row_at(ad_tape *tape, ad_tensor *x, ad_tensor *row, const char *site);
AD_API ad_tensor *ad_multiply_at(ad_tape *tape, ad_tensor *a, ad_tensor *b,
                                 const char *site); /* same shapes, elementwise */
/* x [..., n], each row times its own factor [...]. */
AD_API ad_tensor *ad_scale_rows_at(ad_tape *tape, ad_tensor *x, ad_tensor *factors, const char *site);
/* By a number of the caller's own, the same on all ranks. Counts divide by ad_divide, which knows whether they were
 * summed. */
AD_API ad_tensor *ad_scale_at(ad_tape *tape, ad_tensor *a, double factor, const char *site);
/* Law 5: a / the count's total over microbatches and ranks; waits for it if it is under way. AD_TYPE while it is P on
 * an axis, which it stays until it was posted and waited for. Total 0: the result and the gradient are 0. */
AD_API ad_tensor *ad_divide_at(ad_tape *tape, ad_tensor *a, const ad_count *count, const char *site);
/* a times microbatch m's share of the count: ad_count_of(m) / total; 0 where the total is 0. How a loss that is not
 * linear in its sums enters: it is defined per microbatch over all ranks, and weighs what its microbatch weighs. */
AD_API ad_tensor *ad_share_at(ad_tape *tape, ad_tensor *a, const ad_count *count, size_t m, const char *site);
AD_API ad_tensor *ad_sum_at(ad_tape *tape, ad_tensor *a, const char *site); /* over all dimensions -> scalar */
/* Along one dimension, which goes: [a, b, c] over 1 -> [a, c]. Sum and mean (by the whole size of the dimension) are
 * wide; where the dimension is cut each rank has an addend, P. */
AD_API ad_tensor *ad_sum_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
AD_API ad_tensor *ad_mean_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
/* The largest along a dimension that is whole. Its gradient goes to the largest alone, of equal ones to the first. */
AD_API ad_tensor *ad_max_over_at(ad_tape *tape, ad_tensor *x, int dim, const char *site);
/* x [..., k] with w [k, n] -> [..., n]: the product y = x w. */
AD_API ad_tensor *ad_linear_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const char *site);
/* x [..., k] with w [n, k] -> [..., n]: y = x w^T, for a head that is tied to its embedding. */
AD_API ad_tensor *ad_linear_transposed_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const char *site);
/* indices i32 [batch, seq], table [vocabulary, d] -> [batch, seq, d]. An index outside the table is AD_INVALID, naming
 * it. Of a table that is cut along the vocabulary (S0) each rank looks up its own rows: the result is P there. */
AD_API ad_tensor *ad_embedding_at(ad_tape *tape, ad_tensor *table, ad_tensor *indices, const char *site);
/* x / sqrt(mean(x^2) + epsilon) * weight over the last dimension; x [..., d], weight [d]. Zhang and Sennrich 2019. */
AD_API ad_tensor *ad_rms_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, double epsilon, const char *site);
/* The same without a weight. */
AD_API ad_tensor *ad_rms_norm_unweighted_at(ad_tape *tape, ad_tensor *x, double epsilon, const char *site);
/* (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * weight + bias over the last dimension, which is whole; x
 * [..., d], weight and bias [d]. Ba et al. 2016. */
AD_API ad_tensor *ad_layer_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, ad_tensor *bias, double epsilon,
                                   const char *site);
/* x [samples, ...] with each element 0 with this probability, from 0 on and below 1, and else divided by one minus it.
 * Element i of a sample is 0 where its number of ad_array_uniform (array.h) is below the probability: of the seed, the
 * name (another one for each place of a model), the step, the number of the sample (`first` is that of x's first one)
 * and i. So every mesh, every way to cut a batch into microbatches and every dtype drops the same. AD_TYPE where x is
 * V, for then each rank has values of its own. */
AD_API ad_tensor *ad_dropout_at(ad_tape *tape, ad_tensor *x, double probability, uint64_t seed, const char *name,
                                int64_t step, int64_t first, const char *site);
/* ad_rms_norm over each head of x [batch, seq, heads*head_dim], weight [head_dim]; cuts fall between heads. */
AD_API ad_tensor *ad_head_norm_at(ad_tape *tape, ad_tensor *x, ad_tensor *weight, double epsilon, const char *site);
/* x [batch, seq, d] with its first n rows replaced by front [batch, n, d]: embeddings of something else than tokens.
 * Both lie alike, the sequence whole. */
AD_API ad_tensor *ad_place_at(ad_tape *tape, ad_tensor *x, ad_tensor *front, const char *site);
/* Values side by side along the last dimension, which is whole: n of them, 1 to 64, of shapes that are equal but for
 * it. Law 3 as for ad_add: all P, or none. And back: columns first .. first + count - 1 of the last dimension. */
AD_API ad_tensor *ad_concat_at(ad_tape *tape, ad_tensor *const *parts, size_t n, const char *site);
AD_API ad_tensor *ad_slice_at(ad_tape *tape, ad_tensor *x, int64_t first, int64_t count, const char *site);
/* The same along any dimension, whole likewise, numbered from 0. */
AD_API ad_tensor *ad_concat_along_at(ad_tape *tape, ad_tensor *const *parts, size_t n, int dim, const char *site);
AD_API ad_tensor *ad_slice_along_at(ad_tape *tape, ad_tensor *x, int dim, int64_t first, int64_t count,
                                    const char *site);
/* x with two of its dimensions in each other's place; cuts go along. Two equal ones: x. */
AD_API ad_tensor *ad_transpose_at(ad_tape *tape, ad_tensor *x, int dim, int other_dim, const char *site);
/* The same elements in another shape, of as many; no byte moves. A cut stays where the cut dimension begins where one
 * of the new shape does and its parts are the same elements: [8, 6] cut S0 is [4, 2, 6] or [48] cut S0 over 2 or 4
 * ranks, and S1 is [8, 2, 3] cut S1. AD_TYPE where it is not so, for instance [8, 6] cut S1 as [48], or parts that are
 * uneven and would be others: gather first. */
AD_API ad_tensor *ad_reshape_at(ad_tape *tape, ad_tensor *x, const ad_shape *shape, const char *site);
/* x [...] once for each of the samples, indices i32 [n, seq] -> [n, ...]. Where samples are cut x is R, and each rank's
 * samples leave an addend of its gradient. */
AD_API ad_tensor *ad_repeat_at(ad_tape *tape, ad_tensor *x, ad_tensor *samples, const char *site);
/* Rotary positions on x [batch, seq, heads*head_dim], pairs (i, i + head_dim/2), angle position * base^(-2i/head_dim).
 * Su et al. 2021. */
AD_API ad_tensor *ad_rotary_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base, const char *site);
/* Slower rotations for longer sequences than a model was first trained on, as Llama 3.1 has them ("llama3" of Hugging
 * Face Transformers). A pair that turns by `frequency` at each position has the wavelength w = 2 pi / frequency and
 * makes turns = original_positions / w of them in the first training's sequence. It keeps its frequency where turns >
 * high_turns, has it divided by `factor` where turns < low_turns, and between them
 * s frequency + (1 - s) frequency / factor with s = (turns - low_turns) / (high_turns - low_turns). */
typedef struct ad_rotary_scaling {
  double factor;                /* above 0; 0: nothing is scaled */
  double low_turns, high_turns; /* above 0, the second above the first: low_freq_factor and high_freq_factor there */
  double original_positions;    /* above 0 */
} ad_rotary_scaling;
/* ad_rotary with scaled frequencies; NULL: ad_rotary. */
AD_API ad_tensor *ad_rotary_scaled_at(ad_tape *tape, ad_tensor *x, int64_t head_dim, double base,
                                      const ad_rotary_scaling *scaling, const char *site);
/* Causal attention, softmax(q k^T / sqrt(head_dim)) v, each position seeing itself and those before it: q [batch, seq,
 * heads*head_dim], k and v [batch, seq, kv_heads*head_dim], kv_heads a divisor of heads: head h uses head
 * h*kv_heads/heads of k and v (grouped heads, Ainslie et al. 2023). Holds scores for one block of rows at a time and
 * recomputes them in backward from the rows' maximum and sum. Dao et al. 2022.
 * Layouts. Batch: alike. Heads cut: those of k and v alike (each rank's must serve its own heads), or whole, R.
 * Sequence of q cut, plainly or zigzag: k and v alike on one axis, and they go around its ranks while the block before
 * is computed (ring attention, Liu et al. 2023), so that no rank holds all of them; or whole, R, as all_gather gives
 * them. Scores that no position sees are not computed. */
AD_API ad_tensor *ad_attention_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                                  const char *site);
/* The same without a mask, for encoders: each position sees all of its sequence. */
AD_API ad_tensor *ad_attention_all_at(ad_tape *tape, ad_tensor *q, ad_tensor *k, ad_tensor *v, int64_t head_dim,
                                      const char *site);
/* silu(gate) * up, elementwise. Shazeer 2020. */
AD_API ad_tensor *ad_swiglu_at(ad_tape *tape, ad_tensor *gate, ad_tensor *up, const char *site);
AD_API ad_tensor *ad_gelu_at(ad_tape *tape, ad_tensor *x, const char *site); /* 0.5 x (1 + erf(x / sqrt 2)) */
/* Functions of each element by itself, in any layout that has no P. The slope of relu at 0 is 0; what ln and sqrt make
 * of a number that they are not defined for is no number, and infinite at 0. Sigmoid has no arithmetic in bf16, for
 * scores decide: take it of what is wide. */
AD_API ad_tensor *ad_relu_at(ad_tape *tape, ad_tensor *x, const char *site); /* max(x, 0) */
AD_API ad_tensor *ad_tanh_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_sigmoid_at(ad_tape *tape, ad_tensor *x, const char *site); /* 1 / (1 + exp(-x)) */
AD_API ad_tensor *ad_exp_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_ln_at(ad_tape *tape, ad_tensor *x, const char *site); /* natural */
AD_API ad_tensor *ad_sqrt_at(ad_tape *tape, ad_tensor *x, const char *site);
/* Sum over positions with target >= 0 of -log softmax(logits)[target]: the numerator only; logits [batch, seq,
 * vocabulary], targets i32 [batch, seq]. Where the vocabulary is cut the ranks gather three numbers of each row, and
 * the result is I: as all_gather S->I of the logits would make it, which then never exist on one rank. */
AD_API ad_tensor *ad_cross_entropy_at(ad_tape *tape, ad_tensor *logits, ad_tensor *targets, const char *site);

/* ---- distances ---- */
/* The sum over all elements of (a - b)^2: the numerator. The mean squared error is that divided (ad_divide) by the
 * count of all elements of the step, or by another count that the mean shall be over. */
AD_API ad_tensor *ad_squared_error_at(ad_tape *tape, ad_tensor *a, ad_tensor *b, const char *site);
/* The sum over positions of KL(softmax(target) || softmax(logits)): the numerator. Both [..., vocabulary], which is
 * whole; the target is a constant. */
AD_API ad_tensor *ad_kl_divergence_at(ad_tape *tape, ad_tensor *logits, ad_tensor *target, const char *site);
#define ad_squared_error(...) ad_squared_error_at(__VA_ARGS__, AD_HERE)
#define ad_kl_divergence(...) ad_kl_divergence_at(__VA_ARGS__, AD_HERE)

/* ---- mixtures of experts ---- */
/* Rows: [rows, width]. Which rows go where is a routing: made by ad_top_k, followed by the operations below, alive
 * until the tape's reset. The same on all ranks on whose axes its scores are R or I. */
typedef struct ad_routing ad_routing;
AD_API ad_tensor *ad_softmax_at(ad_tape *tape, ad_tensor *x, const char *site); /* over the last dimension */
/* Each row divided by its sum, over the last dimension, which is whole: what is above 0 becomes shares. */
AD_API ad_tensor *ad_shares_at(ad_tape *tape, ad_tensor *x, const char *site);
/* x [..., d] as rows [n, d]: on axes that cut any dimension but the last each rank has rows of its own, V. And back:
 * the shape and the cuts of `like`, whose rows they were. */
AD_API ad_tensor *ad_to_rows_at(ad_tape *tape, ad_tensor *x, const char *site);
AD_API ad_tensor *ad_from_rows_at(ad_tape *tape, ad_tensor *x, ad_tensor *like, const char *site);
/* scores [tokens, experts] -> the k best of each token, best first, of equal ones the lowest expert: [tokens, k].
 * Chosen by score + bias ([experts], NULL: none). The scores that are not chosen get exactly zero gradient.
 * *routing is set by the call, so the call is a statement of its own: as an argument of another call, beside one that
 * reads the routing, it may come too late. */
AD_API ad_tensor *ad_top_k_at(ad_tape *tape, ad_tensor *scores, int64_t k, const ad_array *bias, ad_routing **routing,
                              const char *site);
/* An expert takes at most ceil(capacity * choices / experts) of all ranks' choices, those of the tokens with the lowest
 * numbers; the others are dropped and have no slot. `batch` [samples, seq, ...]: token number sample * seq + position;
 * its rows on this rank, from number `first` on, are those that were routed. Collective over the axes on which the
 * scores are V. After ad_top_k and before slots are made. */
AD_API void ad_limit_at(ad_tape *tape, ad_routing *routing, double capacity, const ad_tensor *batch, size_t first,
                        const char *site);
/* What was chosen of this rank's tokens, once ad_top_k has run; a routing that is NULL, or on whose tape it failed, has
 * no choices. */
AD_API size_t ad_routing_dropped(const ad_routing *routing); /* how many choices have no slot */
/* [tokens, top_k]: the number of the expert of each choice, as ad_top_k's result has the scores, dropped ones too.
 * *count: tokens * top_k. Borrowed, until the tape's reset; on engine dry as if tokens were spread evenly. NULL where
 * there are none. */
AD_API const int32_t *ad_routing_choices(const ad_routing *routing, size_t *count);
/* The smallest distance between the score + bias of an expert that a token chose and of one that it did not, below 0
 * only where choices were given (ad_decisions); INFINITY where nothing was left to choose or there are no choices. What
 * a program's `choices.margin` is made of (program.h). */
AD_API double ad_routing_margin(const ad_routing *routing);
/* Choices that are kept beside a batch [samples, seq, ...], in an order that no mesh changes: [samples * seq, top_k]
 * numbers of experts, for ad_experts_forward (experts.h). A program keeps them for its `choices.decisions`
 * (program.h). */
typedef struct ad_decisions {
  int32_t *of; /* of the whole batch, borrowed until the tape's reset; NULL: they are not kept */
  int given;   /* 1: tokens choose what stands there; 0: each rank writes there what its tokens chose */
} ad_decisions;
/* How many tokens of this rank chose each expert, before any limit: [experts], a constant typed as the scores were: V
 * where ranks route tokens of their own, to be declared P and summed. */
AD_API ad_tensor *ad_choices_at(ad_tape *tape, const ad_routing *routing, const char *site);
/* The load-balancing loss of Fedus et al. 2021, eq. 4 (for any top_k), of these rows:
 *   experts * sum over e of (choices_e / sum of choices) * (sum over rows of shares_e / rows of all ranks),
 * 1 where all is even. shares [rows, experts], each row of sum 1; choices [experts], of all ranks: the whole loss is
 * the sum over all rows, so that it is V where rows are. 0 where nothing was chosen. */
AD_API ad_tensor *ad_balance_at(ad_tape *tape, ad_tensor *shares, ad_tensor *choices, int64_t top_k, const char *site);
/* Slots: the choices, in the order of experts. A row [tokens, d] for each slot, and back the sum of a token's slots;
 * the chosen scores slot by slot [slots]. */
AD_API ad_tensor *ad_to_slots_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *site);
AD_API ad_tensor *ad_from_slots_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *site);
AD_API ad_tensor *ad_slot_weights_at(ad_tape *tape, ad_tensor *chosen, const ad_routing *routing, const char *site);
/* Slots, V on `axes`, to the ranks that have their experts (cut over `axes` as S0 cuts), in the order of experts there;
 * and back. all_to_all V->V with true counts. */
AD_API ad_tensor *ad_dispatch_at(ad_tape *tape, ad_tensor *x, ad_routing *routing, const char *axes, const char *site);
AD_API ad_tensor *ad_return_at(ad_tape *tape, ad_tensor *x, const ad_routing *routing, const char *axes,
                               const char *site);
/* Dispatched rows [n, k] with matrices [experts, k, m], cut S0 over the axes of the dispatch; each row with that of its
 * expert -> [n, m]. */
AD_API ad_tensor *ad_grouped_linear_at(ad_tape *tape, ad_tensor *x, ad_tensor *w, const ad_routing *routing,
                                       const char *site);
#define ad_softmax(...) ad_softmax_at(__VA_ARGS__, AD_HERE)
#define ad_shares(...) ad_shares_at(__VA_ARGS__, AD_HERE)
#define ad_to_rows(...) ad_to_rows_at(__VA_ARGS__, AD_HERE)
#define ad_from_rows(...) ad_from_rows_at(__VA_ARGS__, AD_HERE)
#define ad_top_k(...) ad_top_k_at(__VA_ARGS__, AD_HERE)
#define ad_limit(...) ad_limit_at(__VA_ARGS__, AD_HERE)
#define ad_choices(...) ad_choices_at(__VA_ARGS__, AD_HERE)
#define ad_balance(...) ad_balance_at(__VA_ARGS__, AD_HERE)
#define ad_to_slots(...) ad_to_slots_at(__VA_ARGS__, AD_HERE)
#define ad_from_slots(...) ad_from_slots_at(__VA_ARGS__, AD_HERE)
#define ad_slot_weights(...) ad_slot_weights_at(__VA_ARGS__, AD_HERE)
#define ad_dispatch(...) ad_dispatch_at(__VA_ARGS__, AD_HERE)
#define ad_return(...) ad_return_at(__VA_ARGS__, AD_HERE)
#define ad_grouped_linear(...) ad_grouped_linear_at(__VA_ARGS__, AD_HERE)

/* Transitions (law 2). `axes` as in ad_axes_parse; axes on which x has different types are moved one type after the
 * other; where the mesh names one of them, those that it does not name and that need no move stay as they are. A failed
 * tape tells the group of its error here, where the others may wait. */
AD_API ad_tensor *ad_move_at(ad_tape *tape, ad_tensor *x, ad_move move, const char *axes, ad_type to, const char *site);
/* The same value seen on another factorisation of its ranks, as ad_layout_view allows it: no byte moves. Backward views
 * the gradient on x's mesh again. Borrows the view until reset. */
AD_API ad_tensor *ad_view_at(ad_tape *tape, ad_tensor *x, const ad_mesh *view, const char *site);

/* x, which lies as the bridge's source, brought to its destination, on another mesh of the same ranks. Its gradient is
 * summed over the axes on which the destination is R, and goes back. Borrows the bridge until reset. */
AD_API ad_tensor *ad_cross_at(ad_tape *tape, ad_tensor *x, ad_bridge *bridge, const char *site);
#define ad_cross(...) ad_cross_at(__VA_ARGS__, AD_HERE)

/* ---- stepping outside the types ---- */
/* x for code that knows local buffers only: its own part is ad_tensor_array of what is returned. `gradient` is the
 * layout of the gradient that this code will hand back, to ad_backward_from, for what is returned: it says how the
 * value is used. Where it is the dual of x's type nothing happens; where it is not, x is brought to the type whose dual
 * it is by an entry of law 2 that moves no bytes: I->R for a gradient that is P (each rank leaves an addend; the sum is
 * the entry's backward), S(d)->V or R->V for one that is V. NULL: the dual on every axis. AD_TYPE for a P without a
 * stated gradient, and where no such entry is. */
AD_API ad_tensor *ad_to_local_at(ad_tape *tape, ad_tensor *x, const char *gradient, const char *site);
/* The way back: an array that such code made, with its layout, and the layout in which that code wants its gradient,
 * which is that of *leaf (ad_grad, after backward; NULL: not wanted). The same entries between the two, I->R for a
 * value that all ranks made alike (its gradient: I) and whose users leave addends. */
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
#define ad_divide(...) ad_divide_at(__VA_ARGS__, AD_HERE)
#define ad_share(...) ad_share_at(__VA_ARGS__, AD_HERE)
#define ad_sum(...) ad_sum_at(__VA_ARGS__, AD_HERE)
#define ad_sum_over(...) ad_sum_over_at(__VA_ARGS__, AD_HERE)
#define ad_mean_over(...) ad_mean_over_at(__VA_ARGS__, AD_HERE)
#define ad_max_over(...) ad_max_over_at(__VA_ARGS__, AD_HERE)
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
#define ad_concat_along(...) ad_concat_along_at(__VA_ARGS__, AD_HERE)
#define ad_slice_along(...) ad_slice_along_at(__VA_ARGS__, AD_HERE)
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
