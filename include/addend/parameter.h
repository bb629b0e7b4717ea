/* Parameters and states as layers declare them: name, shape, layouts, dtypes, unit and initial values. Memory, storage,
 * reductions and updates are made from that. */
#ifndef ADDEND_PARAMETER_H
#define ADDEND_PARAMETER_H
#include "addend/array.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Law 8. Zero fields: param f32, grad = param, reduce = grad, accumulate f32 (f64 for f64). With `raw` a gradient keeps
 * its producer's dtype: grad then says which one that is, and stays 0 where gradients may come in any; reduce must be
 * given there. The producer of a recipe's gradients is the tape: its contracts have grad = precision.compute where they
 * are raw. */
typedef struct ad_contract {
  ad_dtype param;      /* storage of the parameter */
  ad_dtype grad;       /* what a raw gradient is brought to before a bucket is chosen */
  int raw;             /* 1: keep the producer's dtype, which is `grad` if that is known */
  ad_dtype reduce;     /* on the wire */
  ad_dtype accumulate; /* sums form in it */
} ad_contract;

enum { AD_PARAM_NAME_SIZE = 96 }; /* of a name that a layer makes, its end included */

/* Everything that is known of a parameter before it has memory. A layer states name, shape, layout, `sharded`, unit,
 * decay and initial values; storage and contract follow from how it is to be trained. */
typedef struct ad_param_spec {
  size_t size;      /* sizeof(ad_param_spec) */
  const char *name; /* unique in its module; copied by what is made from the spec */
  ad_shape shape;
  ad_layout layout;  /* compute */
  ad_layout storage; /* of what the optimizer updates: the layout, or cut where that is R or I; on no axis P */
  ad_axes sharded;   /* over these axes its storage may be cut along dimension 0, beyond its compute layout (ZeRO) */
  ad_contract contract;
  int unit;    /* those of one number are gathered together: a layer; ascending in the order of the forward pass */
  int wide;    /* it is computed with in f32 also where others are read in bf16, as those of one dimension are */
  int decays;  /* weight decay applies */
  int lasting; /* its gradient is added to through most of a backward pass: it has uses that lie far apart */
  double mean, deviation; /* initial values: normal with this deviation around this mean, keyed by (seed, name, global
                             element index) */
} ad_param_spec;

/* State that no gradient updates (a router's balancing bias, adversarial sources): checkpoints, resume and a proof's
 * restarts carry it; whoever declared it changes it. */
typedef struct ad_state_spec {
  size_t size;      /* sizeof(ad_state_spec) */
  const char *name; /* unique among the module's parameters and states; copied */
  ad_dtype dtype;
  ad_shape shape;
  ad_layout layout; /* R, I or cut on every axis */
  double value;     /* at first, in every element */
} ad_state_spec;

/* Fills this rank's part of the value with its initial values. */
AD_API AD_CHECKED ad_status ad_param_initialise(const ad_param_spec *spec, uint64_t seed, int64_t rank,
                                                ad_array *value);

#if defined(__cplusplus)
}
#endif
#endif
