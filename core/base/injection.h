/* Injection points: places in addend's code at which a known bug would change some value (the batch that is read, a
 * norm, a bucket about to be sent). The code passes the value to the injection point and contains no bug itself. A
 * mutation is a function at an injection point, installed by tests and by `addend check --mutate`. Without a mutation,
 * an injection point costs one call and the test of one pointer. */
#ifndef BASE_INJECTION_H
#define BASE_INJECTION_H
#include <stddef.h>
#include "base/internal.h"

/* The injection points. Each comment has the type of the pointer that is passed, and what it points to. */
typedef enum ad_injection_point {
  AD_INJECT_CALL,     /* ad_call_passing *: a collective is about to be posted */
  AD_INJECT_TRANSIT,  /* ad_transit_passing *: a transition is about to be executed */
  AD_INJECT_RECORD,   /* ad_record_passing *: a transition is about to be recorded on a tape */
  AD_INJECT_CONSTANT, /* ad_constant_passing *: a constant was recorded on a tape */
  AD_INJECT_OPERANDS, /* ad_operation_passing *: an operation is about to be recorded on a tape */
  /* ad_rerun_passing *: an operation of a layer that is recomputed is about to run again, or is kept */
  AD_INJECT_RERUN,
  AD_INJECT_REFUSED, /* ad_operation_passing *: an operation was refused, and its tape has failed with that error */
  AD_INJECT_RING,    /* ring_passing *: keys are about to be sent around a ring */
  /* ring_turn_passing *: keys were received from a ring, and attention to them is about to be computed */
  AD_INJECT_RING_TURN,
  /* int *: whether gradients that other ranks have gathered are added to this rank's addends */
  AD_INJECT_RING_GATHERED,
  AD_INJECT_ROUTES, /* ad_route_passing *: rows are about to be sent over a bridge */
  /* ad_comm_dtype_passing *: the dtype in which the next value or gradient is sent over a bridge */
  AD_INJECT_COMM_DTYPE,
  AD_INJECT_POSITIONS, /* positions *: the positions for which rotary embeddings are about to be computed */
  AD_INJECT_PRODUCT,   /* gemm_passing *: a matrix product is about to be computed */
  AD_INJECT_STATISTIC, /* double *: the statistic by which a row of values is normalised */
  AD_INJECT_RESIDUAL,  /* ad_dtype *: the dtype of the residual stream that is about to be recorded */
  /* slot_scores_passing *: gradients of slots are about to be converted to gradients of scores */
  AD_INJECT_SLOT_SCORES,
  AD_INJECT_READ,       /* int64_t *: the step whose batch this rank is about to read */
  AD_INJECT_ARRIVED,    /* ad_transfer_passing *: a value has arrived from other ranks */
  AD_INJECT_RETURNED,   /* ad_transfer_passing *: a value's gradient has come back from other ranks */
  AD_INJECT_STATE,      /* ad_state_passing *: the gradient with which a program is about to change a state */
  AD_INJECT_STATES,     /* ad_states_passing *: a program has changed states of a microbatch with gradients */
  AD_INJECT_PHASE,      /* size_t *: the number of the microbatch in which a phase is about to run */
  AD_INJECT_DIVISOR,    /* ad_divisor_passing *: a loss is about to be divided */
  AD_INJECT_POLICY,     /* ad_precision_policy *: the policy with which a bucket is about to be chosen for a gradient */
  AD_INJECT_MICROBATCH, /* ad_reducer *: a microbatch has begun */
  AD_INJECT_IN_PLACE,   /* int *: whether a gradient may be written directly into its bucket */
  /* ad_dtype *: the dtype to which a gradient is about to be converted before it is put into its bucket */
  AD_INJECT_BROUGHT,
  AD_INJECT_ADDED, /* ad_added_passing *: a gradient was added to those of earlier microbatches */
  AD_INJECT_ORDER, /* ad_order_passing *: the bucket to be launched next is chosen */
  AD_INJECT_LEAF,  /* ad_bucket_passing *: a leaf is about to be added to this rank's sums of leaves */
  AD_INJECT_NODE,  /* ad_node_passing *: a rank has a new sum of leaves: a leaf, a collective's result or its own sum */
  AD_INJECT_LAUNCH,    /* ad_bucket_passing *: a bucket is about to be sent */
  AD_INJECT_REDUCED,   /* ad_bucket_passing *: a path step (one collective) of a bucket is complete */
  AD_INJECT_GRADIENTS, /* ad_run *: all gradients of a step are reduced, and not used yet */
  AD_INJECT_SQUARES,   /* ad_exact *: this rank's sum of squares of one gradient, in runs with leaves */
  AD_INJECT_NORM,      /* double *: the norm that decides whether the step is taken */
  AD_INJECT_UPDATE,    /* ad_updating *: a parameter of this rank is about to be updated */
  AD_INJECT_UPDATED,   /* ad_array *: a parameter's master weights, which the optimizer has just written */
  AD_INJECT_FROZEN,    /* ad_array *: a frozen parameter, which the step leaves as it is */
  AD_INJECT_MATRIX,    /* ad_matrix_passing *: a whole matrix is about to be transformed by an optimizer */
  AD_INJECT_STACK,     /* ad_stack_passing *: results of whole matrices are back where the parameters are stored */
  AD_INJECT_REFILL,    /* ad_refill_passing *: copies are about to be gathered again after an update */
  AD_INJECT_COUNT
} ad_injection_point;

typedef void (*ad_injection_function)(void *context, void *passing);
typedef struct ad_injection {
  ad_injection_function function; /* NULL: no mutation */
  void *context;
} ad_injection;

/* Calls the mutation at the injection point, if there is one. */
AD_INTERNAL void ad_inject(ad_injection_point point, void *passing);
/* Installs `slot` at the injection point. Returns the mutation that was there before. */
AD_INTERNAL ad_injection ad_injection_set(ad_injection_point point, ad_injection slot);
ad_injection ad_injection_at(ad_injection_point point);
AD_INTERNAL void ad_injections_clear(void); /* removes all mutations from all injection points */

#endif
