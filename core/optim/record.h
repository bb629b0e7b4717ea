/* Optimizers: each has a record, from which its creation, step, checkpoints, plans, recipes and mutants are derived. No
 * other code depends on which optimizer is used. To add an optimizer, add its kind and options in addend/optim.h, its
 * record in records.c, its loop in update_kernel_body.h, and its keys in train/recipe/schema.c. */
#ifndef OPTIM_RECORD_H
#define OPTIM_RECORD_H
#include "addend/optim.h"
#include "base/internal.h"
#include "kernels/kernels.h"

enum { AD_OPTIMIZER_OPTIONS_MAX = 16, AD_STATE_NAME_MAX = 31 };

/* An option that an optimizer reads. */
typedef struct ad_option_record {
  const char *name; /* name of the option's field in ad_optimizer_options; NULL ends the list */
  size_t offset;    /* offset of this field in ad_optimizer_options */
  uint8_t is_int;   /* 1: the field is an int (a flag, a number or an enum); 0: it is a double */
  double fallback;  /* the default, which applies if the field is 0 */
  double zero;      /* a value that means 0, where 0 means a default (AD_BETA_ZERO); 0: there is none */
  size_t needs;     /* offset of another option that must not be 0 if this option is set; 0: none */
} ad_option_record;

/* A state that an optimizer keeps of a parameter. It has the parameter's shape, dtype and layout. */
typedef struct ad_state_record {
  /* its name in checkpoints is NAME.PARAMETER; at most AD_STATE_NAME_MAX characters; NULL ends the list */
  const char *name;
  size_t needs; /* offset of an option; the state is kept only if this option is not 0; 0: always kept */
} ad_state_record;

/* The numbers that the loop over a parameter's elements uses in one step. */
typedef struct ad_update {
  const ad_optimizer_options *options; /* the optimizer's options, with defaults filled in */
  double lr, factor;                   /* `factor` multiplies the gradient */
  double decay;                        /* weight_decay, or 0 if the parameter does not decay */
  int64_t step;                        /* the step, counted from 1 since the states began */
  double derived[2];                   /* numbers that `prepare` computes from those above */
} ad_update;

/* The loops over elements [0, n) of a parameter, one for each dtype. states[k] is the memory of state number k in the
 * parameter's dtype; NULL if the state is not kept. No two arrays overlap. */
typedef struct ad_update_kernels {
  void (*f32)(const ad_update *update, float *param, void *const *states, const float *grad, size_t n);
  void (*f64)(const ad_update *update, double *param, void *const *states, const double *grad, size_t n);
  /* In place of these two, of an optimizer that works on whole matrices: `direct` updates the states and, if
   * `direction` is not NULL, writes the direction; `apply` updates the parameter by what became of the direction. */
  void (*direct_f32)(const ad_update *update, void *const *states, const float *grad, float *direction, size_t n);
  void (*direct_f64)(const ad_update *update, void *const *states, const double *grad, double *direction, size_t n);
  void (*apply_f32)(const ad_update *update, float *param, const float *direction, size_t n);
  void (*apply_f64)(const ad_update *update, double *param, const double *direction, size_t n);
} ad_update_kernels;

/* A whole matrix in memory, row-major. */
typedef struct ad_whole_matrix {
  void *data;
  ad_dtype dtype;
  int64_t rows, cols, stride; /* `stride` elements from the start of one row to that of the next */
} ad_whole_matrix;

/* The middle of an update on whole matrices. An optimizer that has one first computes a direction from a matrix's
 * gradient and states, element by element (ad_update_kernels.direct), where the matrix is stored. The directions of a
 * matrix's shards are brought together on one rank, and `transform` replaces the whole matrix by its result. The shards
 * of the result go back, and the parameter is updated by them, element by element (`apply`). So states, gradients and
 * parameters are sharded as those of any optimizer, and the bits do not depend on how they are sharded: whichever rank
 * has the whole matrix makes the same products of it. No comparison of an update needs a tolerance. */
typedef struct ad_whole_record {
  /* Replaces the matrix by its result. update->derived[0] is rate_factor's factor. `scratch` has scratch_bytes bytes
   * and is 64-byte aligned. The matrix's own alignment must not change the result. */
  ad_status (*transform)(const ad_update *update, const ad_whole_matrix *matrix, const ad_optimizer_product *product,
                         void *scratch);
  size_t (*scratch_bytes)(const ad_optimizer_options *options, ad_dtype dtype, int64_t rows, int64_t cols);
  /* multiplications and additions of `transform` */
  double (*operations)(const ad_optimizer_options *options, int64_t rows, int64_t cols);
  /* the factor of the learning rate for a matrix with `in` and `out` features */
  double (*rate_factor)(const ad_optimizer_options *options, int64_t in, int64_t out);
  ad_muon_way (*way)(const ad_optimizer_options *options);
  int (*is_blockwise)(const ad_optimizer_options *options);
} ad_whole_record;

typedef struct ad_optimizer_record {
  const char *name; /* name of the optimizer in messages */
  ad_option_record options[AD_OPTIMIZER_OPTIONS_MAX + 1];
  ad_state_record states[AD_OPTIMIZER_STATES_MAX + 1];
  /* Checks the values of options, with defaults filled in. Called only if each option that is set has the option that
   * it needs (`needs`). */
  ad_status (*check)(const ad_optimizer_options *options);
  void (*prepare)(ad_update *update); /* NULL: there is nothing to derive */
  /* The loops, indexed by ad_variant. All variants give the same bits. Each element is updated from its own parameter,
   * states and gradient alone, so an update of shards gives the same bits as an update of the full parameter. */
  const ad_update_kernels *kernels[AD_AVX512FP16 + 1];
  const ad_whole_record *whole; /* NULL: the optimizer works on elements alone */
} ad_optimizer_record;

/* Returns 1 if an optimizer with a record of whole matrices updates each block of a matrix that a rank stores by itself. */
static inline int ad_optimizer_is_blockwise(const ad_optimizer_record *record, const ad_optimizer_options *options) {
  return record->whole->is_blockwise && record->whole->is_blockwise(options);
}

/* Returns the optimizer's record, or NULL if there is no such optimizer. */
AD_INTERNAL const ad_optimizer_record *ad_optimizer_record_of(ad_optimizer_kind kind);

/* Returns the record's option whose field is at this offset, or NULL if the optimizer does not read that field. */
AD_INTERNAL const ad_option_record *ad_optimizer_option_at(const ad_optimizer_record *record, size_t offset);
/* Returns 1 if `offset` is not 0 and the option at this offset is 0, so that an option or state that needs it is
 * missing it; else 0. */
AD_INTERNAL int ad_optimizer_option_is_missing(const ad_optimizer_record *record, size_t offset,
                                               const ad_optimizer_options *options);
/* Changes options with a value for every field (from a recipe) into options that ad_optimizer_create takes: fields that
 * the optimizer does not read become 0, and a 0 becomes the value that means 0 (ad_option_record.zero), so that it is
 * not replaced by the default. */
AD_INTERNAL void ad_optimizer_options_exactly(ad_optimizer_options *options);
AD_INTERNAL size_t ad_optimizer_bytes(const ad_optimizer *optimizer); /* bytes of all states on this rank */

/* Tells the optimizer that the states of a parameter were zero after `step` steps, and not at the first step, as if the
 * parameter had joined then: bias corrections count from there. AD_INVALID if there is no such parameter or step. */
AD_INTERNAL AD_CHECKED ad_status ad_optimizer_begin_states(ad_optimizer *optimizer, size_t param, int64_t step);

/* Argument of the injection point AD_INJECT_UPDATE: one step of one parameter on this rank. */
typedef struct ad_updating {
  const ad_optimizer_record *record;
  ad_update numbers;
  ad_array *param;
  ad_array *states;     /* [AD_OPTIMIZER_STATES_MAX]; data is NULL for a state that is not kept */
  const ad_array *grad; /* NULL: the gradient is zero */
  ad_optimizer *optimizer;
  size_t index;        /* number of the parameter in the optimizer */
  size_t group;        /* number of its group */
  const double *rates; /* the learning rate of each group in this step */
  size_t group_count;
  int again; /* for mutations, of an optimizer that works on whole matrices: how often it updates all of them again */
} ad_updating;
/* Updates a parameter and its states, element by element. Not for optimizers that work on whole matrices. */
void ad_update_param(const ad_updating *updating);

enum {
  /* Number of elements of a block. Gradients that are missing or have another dtype are processed block by block, so
   * that a block stays in a cache. */
  AD_GRADIENT_BLOCK = 1024
};
/* Returns elements [at, at + n) of the gradient in the parameter's dtype: the gradient's own memory, or `space` with
 * the converted elements; zeros if there is no gradient. n is at most AD_GRADIENT_BLOCK, unless the gradient has the
 * parameter's dtype. */
const void *ad_gradient_at(ad_dtype dtype, const ad_array *grad, size_t at, size_t n, double space[AD_GRADIENT_BLOCK]);

/* The loops of all optimizers, indexed by ad_optimizer_kind; one array for each instruction set. */
extern const ad_update_kernels ad_updates_plain[], ad_updates_avx2[], ad_updates_avx512[];

#endif
