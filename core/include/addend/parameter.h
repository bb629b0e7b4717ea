/* Parameters and states as layers declare them: name, shape, layouts, dtypes, unit and initial values. Memory, storage,
 * reductions and updates are made from these declarations. */
#ifndef ADDEND_PARAMETER_H
#define ADDEND_PARAMETER_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* The dtypes of a parameter and its gradient (law 8). Defaults of zero fields: param f32, grad = param, reduce = grad,
 * accumulate f32 (f64 if the values are f64). With `raw`, a gradient keeps the dtype in which it was produced: `grad`
 * then says which dtype that is, or stays 0 if gradients may come in any; `reduce` must be given in that case. In a
 * recipe the tape produces the gradients: there, raw policies have grad = precision.compute. */
typedef struct ad_precision_policy {
  ad_dtype param;      /* dtype in which the parameter is stored */
  ad_dtype grad;       /* dtype to which a gradient is converted before a bucket is chosen */
  int raw;             /* 1: gradients keep the dtype in which they were produced, which is `grad` if that is known */
  ad_dtype reduce;     /* communication dtype of gradients */
  ad_dtype accumulate; /* dtype in which sums form */
} ad_precision_policy;

enum { AD_PARAM_NAME_SIZE = 96 }; /* bytes of a name that a layer makes, including the final 0 */

/* Everything that is known of a parameter before it has memory. A layer states name, shape, layout, `sharded`, unit,
 * decay and initial values; storage and precision policy follow from how the parameter is trained. */
typedef struct ad_param_spec {
  size_t size;      /* sizeof(ad_param_spec) */
  const char *name; /* unique in its module; copied by what is made from the spec */
  ad_shape shape;
  ad_layout layout; /* the compute layout */
  /* the layout of what the optimizer updates: the compute layout, or sharded on axes where that is R or I; P on no
   * axis */
  ad_layout storage;
  /* axes over which ZeRO may shard the storage along dimension 0, beyond those of the compute layout */
  ad_axes sharded;
  ad_precision_policy policy;
  /* number of the group of parameters, usually a layer, that is gathered together; ascending in the order of the
   * forward pass */
  int unit;
  /* 1: computation uses f32 even where other parameters are read in bf16; always so for parameters of one dimension */
  int wide;
  int decays; /* 1: weight decay applies */
  /* 1: the parameter is used at places far apart, so its gradient accumulates through most of a backward pass */
  int lasting;
  /* Initial values: normally distributed with this mean and standard deviation, drawn by (seed, name, global element
   * index). */
  double mean, deviation;
} ad_param_spec;

/* A state: values that no gradient updates (a router's balancing bias, adversarial sources). Checkpoints, resume and a
 * check's restarts keep it; the layer that declared it changes it. */
typedef struct ad_state_spec {
  size_t size;      /* sizeof(ad_state_spec) */
  const char *name; /* unique among the module's parameters and states; copied */
  ad_dtype dtype;
  ad_shape shape;
  ad_layout layout; /* R, I or S(d) on every axis */
  double value;     /* the initial value of every element */
} ad_state_spec;

/* Fills this rank's part of the value with its initial values. */
AD_API AD_CHECKED ad_status ad_param_initialise(const ad_param_spec *spec, uint64_t seed, int64_t rank,
                                                ad_array *value);

#if defined(__cplusplus)
}
#endif
#endif
