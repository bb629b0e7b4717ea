/* Optimizers on arrays (AdamW, SGD, Muon), learning-rate schedules, and the dynamic loss scale. An optimizer works on the
 * storage layout of each parameter.
 *
 * For users. Only one thread at a time may use an optimizer; the other functions may run on any thread. */
#ifndef ADDEND_OPTIM_H
#define ADDEND_OPTIM_H
#include "addend/parameter.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* A learning-rate schedule, with steps numbered from 0. The rate rises linearly over `warmup` steps: step s of them has
 * lr * (s + 1) / (warmup + 1). Step `warmup` has lr. The rate then follows a cosine down to lr * final_fraction, which
 * it reaches at step `steps` - 1 and keeps after that. If only one step follows the warm-up, that step has lr. */
typedef struct ad_schedule {
  size_t size; /* sizeof(ad_schedule) */
  double lr;
  int64_t warmup, steps;
  double final_fraction;
} ad_schedule;
/* *out: the learning rate of a step; `step` is 0 or more. AD_INVALID, with *out unchanged, if `size` is wrong, if the
 * step or a number of the schedule is below 0, or if a number is not finite. */
AD_API AD_CHECKED ad_status ad_schedule_at(const ad_schedule *schedule, int64_t step, double *out);

/* The optimizers, and the states that they keep of a parameter, in the order of ad_optimizer_state:
 * - AD_ADAMW, after Loshchilov and Hutter, Decoupled Weight Decay Regularization, 2019: first_moment, second_moment.
 *   With the bias-corrected moments m and v of the gradient:
 *     param -= lr * (m / (sqrt(v) + epsilon) + decay * param)
 * - AD_SGD, as torch.optim.SGD with dampening 0: momentum, which is not kept if the option `momentum` is 0. With g =
 *   gradient + decay * param:
 *     buffer = momentum * buffer + g
 *     param -= lr * buffer, or with nesterov lr * (g + momentum * buffer)
 * - AD_MUON, as torch.optim.Muon, for matrices of hidden layers (ad_param_spec.matrices): average_gradient, which is not
 *   kept if the option `momentum` is 0. For each whole matrix, with its gradient g:
 *     average += (1 - momentum) * (g - average)
 *     direction = average, or with nesterov g + momentum * (average - g)
 *     param = param * (1 - lr * decay) - lr * rate * orthogonal(direction)
 *   `orthogonal` is the Newton-Schulz iteration (ad_muon_options), `rate` a factor that depends on the matrix's shape
 *   (ad_muon_rate). A missing gradient counts as zero: the average decays, and the parameter moves on by it. A direction
 *   of zero stays zero.
 * `decay` is the option weight_decay, or 0 for parameters that do not decay. */
typedef enum ad_optimizer_kind { AD_ADAMW, AD_SGD, AD_MUON, AD_OPTIMIZER_COUNT } ad_optimizer_kind;
/* How Muon changes the learning rate of a matrix with `in` and `out` features, in PyTorch's words. */
typedef enum ad_muon_rate {
  AD_MUON_ORIGINAL,           /* lr * sqrt(max(1, out / in)) */
  AD_MUON_MATCH_RMS_ADAMW,    /* lr * 0.2 * sqrt(max(in, out)) */
  AD_MUON_SPECTRAL_UNCLAMPED, /* lr * sqrt(out / in) */
} ad_muon_rate;
/* Which ranks orthogonalise a matrix that several ranks store. The bits of the result do not depend on it. */
typedef enum ad_muon_way {
  AD_WAY_CHEAPEST, /* the least estimated time */
  AD_WAY_GATHERED, /* every rank gathers every matrix */
  AD_WAY_DEALT,    /* the ranks that share a matrix deal whole matrices among themselves; replicas do the same work */
  AD_WAY_DEALT_TO_REPLICAS /* replicas share the work as well */
} ad_muon_way;
/* Options of Muon. Zero fields are the defaults of torch.optim.Muon, except dtype. */
typedef struct ad_muon_options {
  double momentum; /* in [0, 1); default 0.95; AD_BETA_ZERO means 0 */
  int nesterov;    /* default 1; AD_NO: the direction is the average of gradients itself */
  double a, b,
      c;     /* of the iteration aX + b(XX')X + c(XX')(XX')X; defaults 3.4445, -4.7750, 2.0315; AD_NEARLY_ZERO: 0 */
  int steps; /* of the iteration, 1 to 99; default 5 */
  double epsilon; /* the least Frobenius norm by which a direction is divided; default 1e-7 */
  ad_muon_rate rate;
  ad_dtype dtype; /* of the iteration: 0: the parameter's; else AD_BF16, as PyTorch, AD_F32 or AD_F64 */
  ad_muon_way way;
  int blockwise; /* 1: each rank orthogonalises the block that it stores, which is another optimizer */
} ad_muon_options;
#define AD_NEARLY_ZERO 0x1p-1000 /* acts as 0, and is not the default */
#define AD_NO (-1)               /* for a flag with the default 1: 0 */

enum { AD_OPTIMIZER_STATES_MAX = 2 }; /* the most states that an optimizer keeps of a parameter */
/* Zero fields mean the defaults. AD_INVALID for an option of another optimizer than `kind`. Write AD_BETA_ZERO for a
 * beta of 0, with which a moment depends on the last gradient alone. */
#define AD_BETA_ZERO (-1.0)
typedef struct ad_optimizer_options {
  size_t size; /* sizeof(ad_optimizer_options) */
  ad_optimizer_kind kind;
  double weight_decay;          /* for every optimizer: at least 0, default 0 */
  double beta1, beta2, epsilon; /* of AdamW: betas in [0, 1), defaults 0.9 and 0.95; epsilon above 0, default 1e-8 */
  double momentum;              /* of SGD: in [0, 1), default 0 */
  int nesterov;                 /* of SGD, with a momentum above 0: 1 or, the default, 0 */
  int decays_all;               /* for every optimizer: 1: weight decay also applies where the spec's `decays` is 0 */
  ad_muon_options muon;         /* of Muon */
} ad_optimizer_options;
typedef struct ad_optimizer ad_optimizer;

/* A matrix as input of a product. */
typedef struct ad_matrix {
  const void *data;
  int64_t stride; /* elements of memory from the start of one row to that of the next */
  int transposed; /* 1: element (i, j) is data[j * stride + i]; 0: data[i * stride + j] */
} ad_matrix;

/* What computes the products of optimizers that work on whole matrices. `multiply` sets c [m, n], row-major, to factor *
 * a [m, k] b [k, n], plus the contents of c if `adds` is not 0. All three matrices have the dtype: AD_F64, AD_F32 or
 * AD_BF16, whose products are summed in f32 or wider. The bits of a product must depend on the dtype, the sizes, the
 * transpositions and the elements alone. c overlaps neither a nor b. */
typedef struct ad_optimizer_product {
  ad_status (*multiply)(void *context, ad_dtype dtype, int64_t m, int64_t n, int64_t k, double factor, ad_matrix a,
                        ad_matrix b, int adds, void *c, int64_t c_stride);
  void *context;
  /* A number that is another one in a process whose products may have other bits, such as a hash of the library and the
   * processor: where ranks have different numbers, each matrix is worked on by one rank alone, so that replicas stay
   * the same. 0 on all ranks: products have the same bits everywhere. */
  uint64_t kind;
} ad_optimizer_product;

/* Where storage divides a matrix into blocks: the rows and columns, above 0 and ascending, at which a block begins. With
 * it, one process repeats what a distributed run does with the option `blockwise`. */
typedef struct ad_matrix_cuts {
  const int64_t *rows, *cols;
  size_t row_count, col_count;
} ad_matrix_cuts;

/* Groups of parameters: each group has options of its own, and in every step a learning rate of its own. */
typedef struct ad_optimizer_setup {
  size_t size;                        /* sizeof(ad_optimizer_setup) */
  const ad_optimizer_options *groups; /* NULL: one group with the defaults */
  size_t group_count;
  /* for each parameter the number of its group, from 0; NULL: all parameters are in group 0. The number of a frozen
   * parameter is not used. */
  const size_t *group_of;
  /* The rest is for optimizers that work on whole matrices. `comm` brings matrices together; it is needed if there is
   * such an optimizer, and borrowed. */
  ad_comm *comm;
  ad_optimizer_product product; /* `multiply` is NULL: plain loops, right and slow */
  const ad_matrix_cuts *cuts;   /* for each parameter; copied; NULL: a matrix is one block here */
} ad_optimizer_setup;
/* Like ad_optimizer_create, with groups. Collective over the mesh of the parameters that Muon updates, whose meshes must
 * all have the same ranks. The setup and its lists are not needed after this call, but its comm and the context of its
 * product are. Also AD_INVALID if a parameter's group does not exist, or if Muon cannot update a parameter. */
AD_API AD_CHECKED ad_status ad_optimizer_create_groups(const ad_array *const *params, const ad_param_spec *specs,
                                                       size_t count, const ad_optimizer_setup *setup,
                                                       ad_optimizer **out);
/* Creates the states of each parameter, all zero, in the parameter's dtype and layout, and without data if the
 * parameter has none on this rank. A frozen parameter has no states. Weight decay applies to parameter i if
 * specs[i].decays or the option decays_all is not 0, and to all parameters if `specs` is NULL. `specs` is not needed
 * after this call. Borrows the meshes. AD_INVALID and AD_TYPE name the option or the parameter that is wrong;
 * AD_MEMORY. */
AD_API AD_CHECKED ad_status ad_optimizer_create(const ad_array *const *params, const ad_param_spec *specs, size_t count,
                                                const ad_optimizer_options *options, ad_optimizer **out);
AD_API void ad_optimizer_destroy(ad_optimizer *optimizer);
/* Updates all parameters in one pass by the formula of the optimizer, in which the gradient of parameter i is factor *
 * grads[i]. `factor` is usually that of gradient clipping (ad_clip_factor). Layouts, scales and shapes must agree (law
 * 6, like adds to like). A gradient of another floating dtype is first converted to the parameter's dtype. A NULL
 * gradient counts as zero. Frozen parameters and their gradients are not looked at. Where Muon updates sharded matrices,
 * all ranks of their meshes call this together. AD_TYPE and AD_INVALID name the first parameter that is wrong;
 * AD_INVALID also if the rate or the factor is not finite; nothing is updated then. Muon also returns errors of
 * collectives and products, and AD_NUMBER if a direction or a result is not finite, on the rank that works on the
 * matrix; the other ranks get AD_RANK_LEFT when that one leaves. After those errors the parameters are undefined, and
 * the optimizer can only be destroyed. */
#define ad_optimizer_step(...) ad_optimizer_step_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_optimizer_step_at(ad_optimizer *optimizer, ad_array *const *params,
                                                 const ad_array *const *grads, double lr, double factor,
                                                 const char *site);
/* Like ad_optimizer_step, with a learning rate for each group: rates[0], ..., one for each group of the setup. */
#define ad_optimizer_step_rates(...) ad_optimizer_step_rates_at(__VA_ARGS__, AD_HERE)
AD_API AD_CHECKED ad_status ad_optimizer_step_rates_at(ad_optimizer *optimizer, ad_array *const *params,
                                                       const ad_array *const *grads, const double *rates, double factor,
                                                       const char *site);
AD_API int64_t ad_optimizer_steps(const ad_optimizer *optimizer);
/* Sets the number of steps taken, on which AdamW's bias correction depends: call it after the optimizer's states were
 * loaded. AD_INVALID, with nothing changed, if the number is below 0. */
AD_API AD_CHECKED ad_status ad_optimizer_set_steps(ad_optimizer *optimizer, int64_t steps);
/* Returns state number `state` (from 0) of parameter number `param`; NULL if the optimizer keeps no such state of the
 * parameter. Owned by the optimizer. A checkpoint needs every state that is not NULL, for state = 0, 1, ... until
 * ad_optimizer_state_name returns NULL. */
AD_API ad_array *ad_optimizer_state(ad_optimizer *optimizer, size_t param, size_t state);
/* The name of a state, such as "first_moment"; NULL if optimizers of this kind have no state with that number. */
AD_API const char *ad_optimizer_state_name(ad_optimizer_kind kind, size_t state);

/* The dynamic loss scale for f16 gradients. The loss is multiplied by 2^exponent before backward, and the update
 * divides the gradients by 2^exponent. A step whose gradient norm is not finite is skipped on all ranks (the norm is
 * the same on all of them) and lowers the exponent; `growth` good steps in a row raise the exponent, which stays within
 * -24 to 24. This struct is the scale's whole state: save it with the optimizer's. */
/* limits of the exponent; gradients that need a scale beyond them have another bug */
enum { AD_LOSS_SCALE_LEAST = -24, AD_LOSS_SCALE_MOST = 24 };
typedef struct ad_loss_scale {
  int enabled, exponent;
  /* growth: after this many good steps in a row the exponent is raised, 0 means 2000; good_steps: the number of good
   * steps in a row so far */
  int64_t growth, good_steps;
} ad_loss_scale;
/* Returns 1 if the step is to be taken, because `norm` is finite, else 0. Also adapts the exponent, if the scale is
 * enabled. */
AD_API int ad_loss_scale_update(ad_loss_scale *scale, double norm);
/* The factor that undoes the scale in a gradient: 2^-exponent, exact; 1 if the scale is not enabled. */
AD_API double ad_loss_scale_factor(const ad_loss_scale *scale);
/* *out: the factor that reduces a gradient of this norm to at most `clip`: clip / norm, or 1 if the norm is at most
 * `clip` or `clip` is 0. (PyTorch's clip_grad_norm_ divides by norm + 1e-6 instead.) AD_INVALID if clip is not finite
 * or below 0, AD_NUMBER if the norm is not finite or below 0 (skip such a step, see ad_loss_scale_update); *out is then
 * unchanged. */
AD_API AD_CHECKED ad_status ad_clip_factor(double norm, double clip, double *out);

#if defined(__cplusplus)
}
#endif
#endif
