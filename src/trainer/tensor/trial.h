/* An operation on trial: drawn operands, what one process makes of them in f64, and the five parts of
 * ad_check_operation. */
#ifndef TENSOR_TRIAL_H
#define TENSOR_TRIAL_H
#include "tensor/tape.h"

/* Records what is tried on drawn operands: a record, or one of addend's own functions that records one operation. */
typedef ad_tensor *(*ad_trial_apply)(ad_tape *tape, ad_tensor *const *x, const void *context);

typedef struct ad_trial {
  ad_operation_trial given;
  ad_trial_apply apply;
  const void *context;
  const ad_operation *op; /* what `apply` recorded */
  uint64_t constants;     /* bit i: operand i carries no gradient */
  int as_parameters;      /* gradients of operands that are `raw` are of the wide dtype, as parameters' are */
  ad_arena *arena;        /* all that follows */
  ad_comm *alone;
  ad_mesh *mesh; /* of one rank */
  ad_layout same;
  double *value[AD_OPERANDS_MAX]; /* whole values, of numbers that the narrowest of the operation's dtypes has */
  ad_shape shape;                 /* of the result; what follows is one process's, in f64 */
  double *result, *arriving, *gradient[AD_OPERANDS_MAX];
} ad_trial;

/* The operation, recorded once. Until the tape's reset. */
typedef struct ad_tried {
  ad_array array[AD_OPERANDS_MAX];
  ad_tensor *x[AD_OPERANDS_MAX], *out;
} ad_tried;

/* ad_check_operation of what `apply` records. */
ad_status ad_check_applied(ad_trial_apply apply, const void *context, const ad_operation_trial *given) AD_CHECKED;

ad_status ad_trial_promises(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_differences(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_dtypes(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_types(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_linear(const ad_trial *trial) AD_CHECKED; /* of what is linear by its types */

/* A tape on one rank, on which values are of this dtype. */
ad_status ad_trial_tape(const ad_trial *trial, ad_dtype dtype, ad_tape **out) AD_CHECKED;
/* Operands that lie so (`layouts` NULL: as on one rank), and the operation on them. The tape's own status is that of
 * the operation; this one is AD_MEMORY at most. */
ad_status ad_trial_record(const ad_trial *trial, ad_tape *tape, const ad_layout *layouts, ad_tried *out) AD_CHECKED;
/* This rank's part of a whole value of f64 numbers. Where it is P the ranks' addends are drawn, by `stream`, and their
 * sum is the value. */
ad_status ad_trial_part(const ad_trial *trial, ad_tape *tape, const double *whole, uint64_t stream,
                        ad_array *out) AD_CHECKED;
static inline int ad_trial_carries(const ad_trial *trial, size_t i) { return !(trial->constants >> i & 1); }
static inline size_t ad_trial_numel(const ad_trial *trial, size_t i) {
  return (size_t)ad_shape_numel(&trial->given.shapes[i]);
}
/* AD_INVALID: the sentence after the operation's name. */
ad_status ad_trial_fail(const ad_trial *trial, const char *format, ...) AD_PRINTF(2, 3);

#endif
