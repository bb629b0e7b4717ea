/* Parameters and states as layers declare them: name, shape, layouts, dtypes, unit and initial values. Memory, storage,
 * reductions and updates follow from these declarations.
 *
 * For users, and authors of programs, whose layers declare parameters. Specs are plain values; ad_param_initialise may
 * run on any thread, one thread for each array. */
#ifndef ADDEND_PARAMETER_H
#define ADDEND_PARAMETER_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The dtypes of a parameter and its gradient (law 8, precision). Defaults of zero fields: param f32, grad = param,
 * reduce = grad, accumulate f32 (f64 if the values are f64). With `raw`, a gradient keeps the dtype in which it was
 * produced: `grad` is then that dtype, or 0 if gradients may come in any dtype, and `reduce` must be set. In a recipe,
 * raw policies have grad = precision.compute, the dtype in which the backward pass produces gradients. */
typedef struct ad_precision_policy {
  ad_dtype param;      /* dtype in which the parameter is stored */
  ad_dtype grad;       /* dtype to which a gradient is converted before it is put into a bucket */
  int raw;             /* 1: gradients keep the dtype in which they were produced, which is `grad` unless that is 0 */
  ad_dtype reduce;     /* communication dtype of gradients */
  ad_dtype accumulate; /* dtype in which sums are accumulated */
} ad_precision_policy;

/* What matrices a parameter consists of, for optimizers that work on whole matrices. The last two dimensions are one
 * matrix or several beside each other; a dimension before them counts such matrices (experts). */
enum { AD_FUSED_MAX = 8 };
typedef enum ad_matrix_form {
  AD_MATRIX_PLAIN, /* the last two dimensions are one matrix; a parameter of fewer than 2 dimensions has none */
  AD_MATRIX_FUSED, /* the last two dimensions are several matrices beside each other, as `along` and `piece` say */
  AD_MATRIX_NONE   /* no matrix of a hidden layer: a table whose rows are looked up (an embedding) */
} ad_matrix_form;
/* All zero: one matrix [in, out]. */
typedef struct ad_param_matrices {
  ad_matrix_form form;
  int out_first; /* 1: a matrix is [out, in], as PyTorch stores it; 0: [in, out], as addend's layers do */
  /* Fused matrices are divided along the first (0) or the second (1) of the last two dimensions: piece[0], piece[1], ...,
   * piece[count - 1] rows or columns follow one another, `repeats` times. Matrix i consists of all pieces with number i.
   * Examples: query, key and value one after another, repeats 1; Megatron's groups of heads, repeats = number of
   * groups. The pieces must add up to the full dimension, whatever part of it a rank stores. */
  int along, count;
  int64_t repeats, piece[AD_FUSED_MAX];
} ad_param_matrices;

enum { AD_PARAM_NAME_SIZE = 96 }; /* bytes of the longest parameter name that a layer makes, with the final 0 */

/* Everything that is known of a parameter before it has memory. A layer sets name, shape, layout, `sharded`, unit,
 * decay and initial values; storage and precision policy depend on how the parameter is trained. */
typedef struct ad_param_spec {
  size_t size;      /* sizeof(ad_param_spec) */
  const char *name; /* unique in its module; whatever is made from the spec copies the name */
  ad_shape shape;
  ad_layout layout; /* layout in which computation uses the parameter */
  /* layout in which the parameter's value is stored: the compute layout, or sharded on axes on which that is R or I; no
   * axis is P */
  ad_layout storage;
  /* axes over which ZeRO may shard the storage along dimension 0, in addition to the axes that shard the compute
   * layout */
  ad_axes sharded;
  ad_precision_policy policy;
  /* number of the group of parameters, usually one layer, that are gathered together; numbers ascend in the order of
   * the forward pass */
  int unit;
  /* 1: computation uses f32 even if other parameters are used in bf16; parameters of one dimension are always used in
   * f32 */
  int wide;
  int decays; /* 1: weight decay applies */
  /* 1: the parameter is used in distant parts of the model, so its gradient accumulates through most of a backward
   * pass */
  int lasting;
  /* Initial values: normally distributed with this mean and standard deviation; each depends only on (seed, name,
   * global index of the element). */
  double mean, deviation;
  ad_param_matrices matrices;
  int frozen; /* 1: the parameter does not learn; it has no gradient, no reduction, no optimizer state and no update */
  /* Layout in which the optimizer updates the parameter: that of its master weights, its optimizer states and its
   * summed gradient. `mesh` NULL: `storage`. Otherwise `storage`, with S0 on more axes on which that is R or I, inside
   * the axes that shard the rows already: for storage "dp_shard=S0 dp_replicate=R" it may be "dp_shard=S0
   * dp_replicate=S0", so that each replica updates a part of its shards (HFSDP). After each update the values are
   * gathered over these axes. */
  ad_layout update;
} ad_param_spec;

/* A state: values that no gradient updates (a router's balancing bias, adversarial sources). The layer that declared a
 * state changes it; checkpoints, resumed runs and the restarts of a check keep it. */
typedef struct ad_state_spec {
  size_t size;      /* sizeof(ad_state_spec) */
  const char *name; /* unique among the module's parameters and states; copied */
  ad_dtype dtype;
  ad_shape shape;
  ad_layout layout; /* R, I or S(d) on every axis */
  double value;     /* the initial value of every element */
} ad_state_spec;

/* Fills `value`, this rank's part, with the parameter's initial values. */
AD_API AD_CHECKED ad_status ad_param_initialise(const ad_param_spec *spec, uint64_t seed, int64_t rank,
                                                ad_array *value);

#if defined(__cplusplus)
}
#endif
#endif
