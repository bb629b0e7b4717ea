/* The trial of an operation: random operands, the results of one process in f64 for them, and the five parts of
 * ad_check_operation. */
#ifndef TENSOR_TRIAL_H
#define TENSOR_TRIAL_H
#include "tensor/tape.h"

/* Records the operation under test for operands x: a custom record, or one of addend's own functions that record one
 * operation. */
typedef ad_tensor *(*ad_trial_apply)(ad_tape *tape, ad_tensor *const *x, const void *context);

/* Numbers of the random streams: operand i is drawn from stream AD_TRIAL_OPERANDS + i, the gradient that arrives from
 * stream AD_TRIAL_ARRIVING. */
enum { AD_TRIAL_OPERANDS = 1000, AD_TRIAL_ARRIVING = 2000 };

/* One trial of an operation; its arrays are f64. */
typedef struct ad_trial {
  ad_operation_trial given;
  ad_trial_apply apply;
  const void *context;
  const ad_operation *op; /* the record that `apply` used */
  uint64_t constants;     /* bit i: operand i carries no gradient */
  int as_parameters;      /* 1: operands of the record's `raw` get gradients of the wide dtype, as parameters do */
  ad_arena *arena;        /* owns the arrays that follow */
  /* a communicator and a mesh of one rank, and the layout of a value on it */
  ad_comm *alone;
  ad_mesh *mesh;
  ad_layout same;
  /* full operands; their numbers are representable in the narrowest dtype of the operation */
  double *value[AD_OPERANDS_MAX];
  ad_shape shape; /* shape of the result; the fields below hold the results of one process */
  double *result, *arriving, *gradient[AD_OPERANDS_MAX];
} ad_trial;

/* The operation as recorded once on a tape; valid until the tape's reset. */
typedef struct ad_tried {
  ad_array array[AD_OPERANDS_MAX];
  ad_tensor *x[AD_OPERANDS_MAX], *out;
} ad_tried;

/* Does what ad_check_operation does, for the operation that `apply` records. */
ad_status ad_check_applied(ad_trial_apply apply, const void *context, const ad_operation_trial *given) AD_CHECKED;

/* Run the five parts of the check. promises: whether the record keeps its promises. differences: backward against
 * differences of forward. dtypes: narrow dtypes against f64. types: results on several ranks against the types. linear:
 * further promises of operations that are linear by their types. */
ad_status ad_trial_promises(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_differences(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_dtypes(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_types(const ad_trial *trial) AD_CHECKED;
ad_status ad_trial_linear(const ad_trial *trial) AD_CHECKED;

/* Makes a tape of one rank whose values have this dtype. */
ad_status ad_trial_tape(const ad_trial *trial, ad_dtype dtype, ad_tape **out) AD_CHECKED;
/* Records operands with these layouts (`layouts` NULL: as on one rank), then the operation. An error of the
 * operation is the tape's status only; the function itself fails with AD_MEMORY at most. */
ad_status ad_trial_record(const ad_trial *trial, ad_tape *tape, const ad_layout *layouts, ad_tried *out) AD_CHECKED;
/* Makes this rank's part of a full value. The parts of a P value are random addends (from `stream`) that sum to it. */
ad_status ad_trial_part(const ad_trial *trial, ad_tape *tape, const double *full, uint64_t stream,
                        ad_array *out) AD_CHECKED;
static inline int ad_trial_carries(const ad_trial *trial, size_t i) { return !(trial->constants >> i & 1); }
static inline size_t ad_trial_numel(const ad_trial *trial, size_t i) {
  return (size_t)ad_shape_numel(&trial->given.shapes[i]);
}
/* Returns 1 if operand i consists of indices. */
static inline int ad_trial_is_index(const ad_trial *trial, size_t i) {
  return trial->op ? trial->op->indices >> i & 1 : trial->given.below && trial->given.below[i] > 0;
}
/* Fails with AD_INVALID; the message begins with the operation's name. */
ad_status ad_trial_fail(const ad_trial *trial, const char *format, ...) AD_PRINTF(2, 3);

#endif
