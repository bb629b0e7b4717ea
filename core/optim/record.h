/* Optimizers: a record for each, from which creation, the step, checkpoints, plans, recipes and mutants follow. No
 * other code asks which optimizer one is. To add one: its kind and options in addend/optim.h, its record in records.c,
 * its loop in update_kernel_body.h, and its keys in train/recipe/schema.c. */
#ifndef OPTIM_RECORD_H
#define OPTIM_RECORD_H
#include "addend/optim.h"
#include "base/internal.h"
#include "kernels/kernels.h"

enum { AD_OPTIMIZER_OPTIONS_MAX = 8, AD_STATE_NAME_MAX = 31 };

/* An option that an optimizer reads. */
typedef struct ad_option_record {
  const char *name;    /* that of the field of ad_optimizer_options; NULL ends the list */
  size_t offset;       /* of that field */
  uint8_t is_flag;     /* 1: the field is an int; 0: it is a double */
  uint8_t may_be_zero; /* 1: AD_BETA_ZERO means 0 */
  double fallback;     /* the value that 0 means */
  size_t needs;        /* offset of an option without which this one means nothing; 0: none */
} ad_option_record;

/* A state of a parameter. It has the parameter's shape, dtype and layout. */
typedef struct ad_state_record {
  const char *name; /* checkpoints call it NAME.PARAMETER; at most AD_STATE_NAME_MAX characters; NULL ends the list */
  size_t needs;     /* offset of an option without which the state is not kept; 0: none */
} ad_state_record;

/* What a loop needs to know of one step of one parameter. */
typedef struct ad_update {
  const ad_optimizer_options *options; /* with defaults filled in */
  double lr, factor;                   /* `factor` multiplies the gradient */
  double decay;                        /* weight_decay, or 0 if the parameter does not decay */
  int64_t step;                        /* number of the step, 1 for the first */
  double derived[2];                   /* what `prepare` computes from the numbers above */
} ad_update;

/* The loops over elements [0, n) of a parameter, one for each dtype. states[k] is state number k, of the parameter's
 * dtype, NULL if it is not kept. No two arrays overlap. */
typedef struct ad_update_kernels {
  void (*f32)(const ad_update *update, float *param, void *const *states, const float *grad, size_t n);
  void (*f64)(const ad_update *update, double *param, void *const *states, const double *grad, size_t n);
} ad_update_kernels;

typedef struct ad_optimizer_record {
  const char *name; /* as messages call it */
  ad_option_record options[AD_OPTIMIZER_OPTIONS_MAX + 1];
  ad_state_record states[AD_OPTIMIZER_STATES_MAX + 1];
  /* Checks the values of options, with defaults filled in. Options whose
   * `needs` is 0 are refused before this call. */
  ad_status (*check)(const ad_optimizer_options *options);
  void (*prepare)(ad_update *update); /* NULL: there is nothing to derive */
  /* By ad_variant. All variants give the same bits, and each element depends on its own parameter, states and gradient
   * alone: shards are updated to the same bits as the whole. */
  const ad_update_kernels *kernels[AD_AVX512FP16 + 1];
} ad_optimizer_record;

/* Returns the optimizer's record, or NULL if there is no such optimizer. */
AD_INTERNAL const ad_optimizer_record *ad_optimizer_record_of(ad_optimizer_kind kind);

/* Returns the record's option whose field is at this offset, or NULL if the optimizer does not read that field. */
AD_INTERNAL const ad_option_record *ad_optimizer_option_at(const ad_optimizer_record *record, size_t offset);
/* Returns 1 if something needs the option at this offset (0: none) and the option is 0. */
AD_INTERNAL int ad_optimizer_option_is_missing(const ad_optimizer_record *record, size_t offset,
                                               const ad_optimizer_options *options);
/* Makes the options of a recipe, which has a number for every option, those that ad_optimizer_create takes: an option
 * that the optimizer does not read is 0, and one of 0 that may be 0 is AD_BETA_ZERO, so that it is not the default. */
AD_INTERNAL void ad_optimizer_options_exactly(ad_optimizer_options *options);
AD_INTERNAL size_t ad_optimizer_bytes(const ad_optimizer *optimizer); /* bytes of all states on this rank */

/* One step of one parameter on this rank, as it is passed to the injection point AD_INJECT_UPDATE. */
typedef struct ad_updating {
  const ad_optimizer_record *record;
  ad_update numbers;
  ad_array *param;
  ad_array *states;     /* AD_OPTIMIZER_STATES_MAX; data is NULL if there is no such state */
  const ad_array *grad; /* NULL: zero */
} ad_updating;
void ad_update_param(const ad_updating *updating); /* makes the step */

/* The loops of all optimizers, by ad_optimizer_kind, compiled for each instruction set. */
extern const ad_update_kernels ad_updates_plain[], ad_updates_avx2[], ad_updates_avx512[];

#endif
