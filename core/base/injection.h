/* Injection points: places in the product's code where a known bug would change some value (the batch that is read, a
 * norm, a bucket about to be sent). The code passes the value to the injection point and knows no bug. A mutation is a
 * function at an injection point, installed by tests and by `addend check --mutate`. Without a mutation, an injection
 * point costs one call and the test of one pointer. */
#ifndef BASE_INJECTION_H
#define BASE_INJECTION_H
#include <stddef.h>
#include "base/internal.h"

/* Each injection point, with the type of the pointer that it passes and what it points to. */
typedef enum ad_injection_point {
  AD_INJECT_CALL,          /* ad_call_passing *: a collective is about to be posted */
  AD_INJECT_TRANSIT,       /* ad_transit_passing *: a transition is about to be executed */
  AD_INJECT_RECORD,        /* ad_record_passing *: a transition is about to be recorded on a tape */
  AD_INJECT_CONSTANT,      /* ad_constant_passing *: a constant was recorded on a tape */
  AD_INJECT_OPERANDS,      /* ad_operation_passing *: an operation is about to be recorded on a tape */
  AD_INJECT_REFUSED,       /* ad_operation_passing *: an operation was refused, and its tape failed with that */
  AD_INJECT_RING,          /* ring_passing *: keys are about to go around a ring */
  AD_INJECT_RING_TURN,     /* ring_turn_passing *: keys that came around a ring are about to be attended */
  AD_INJECT_RING_GATHERED, /* int *: whether gradients gathered by other ranks are added to a rank's own addends */
  AD_INJECT_ROUTES,        /* ad_route_passing *: rows are about to go over a bridge */
  AD_INJECT_COMM_DTYPE,    /* ad_comm_dtype_passing *: the dtype in which a value or gradient goes over a bridge next */
  AD_INJECT_POSITIONS,     /* positions *: the positions of which rotary positions are about to be made */
  AD_INJECT_PRODUCT,       /* gemm_passing *: a matrix product is about to be computed */
  AD_INJECT_STATISTIC,     /* double *: the statistic by which a row of values is normalised */
  AD_INJECT_RESIDUAL,      /* ad_dtype *: the dtype of the residual stream that is about to be recorded */
  AD_INJECT_SLOT_SCORES,   /* slot_scores_passing *: gradients of slots are about to be turned into those of scores */
  AD_INJECT_READ,          /* int64_t *: the step whose batch this rank is about to read */
  AD_INJECT_ARRIVED,       /* ad_transfer_passing *: a value came from other ranks */
  AD_INJECT_RETURNED,      /* ad_transfer_passing *: the gradient of a value came back from other ranks */
  AD_INJECT_STATE,         /* ad_state_passing *: the gradient by which a program is about to change a state */
  AD_INJECT_STATES,        /* ad_states_passing *: a program changed states of a microbatch by gradients */
  AD_INJECT_PHASE,         /* size_t *: the number of the microbatch in which a phase is about to run */
  AD_INJECT_DIVISOR,       /* ad_divisor_passing *: a loss is about to be divided */
  AD_INJECT_POLICY,        /* ad_precision_policy *: the policy by which a gradient is about to get its bucket */
  AD_INJECT_MICROBATCH,    /* ad_reducer *: a microbatch has begun */
  AD_INJECT_IN_PLACE,      /* int *: whether a gradient may be written directly into its bucket */
  AD_INJECT_BROUGHT,       /* ad_dtype *: the dtype to which a gradient is about to be converted before its bucket */
  AD_INJECT_ADDED,         /* ad_added_passing *: a gradient was added to earlier ones */
  AD_INJECT_ORDER,         /* ad_order_passing *: the bucket to be launched next is chosen */
  AD_INJECT_LAUNCH,        /* ad_bucket_passing *: a bucket is about to be sent */
  AD_INJECT_REDUCED,       /* ad_bucket_passing *: a step of a bucket's path is complete */
  AD_INJECT_GRADIENTS,     /* ad_run *: all gradients of a step are reduced and not yet used */
  AD_INJECT_NORM,          /* double *: the norm that decides whether the step is taken */
  AD_INJECT_UPDATED,       /* ad_array *: a parameter's master weights, which the optimizer has just written */
  AD_INJECT_COUNT
} ad_injection_point;

typedef void (*ad_injection_function)(void *context, void *passing);
typedef struct ad_injection {
  ad_injection_function function; /* NULL: no mutation */
  void *context;
} ad_injection;

/* Calls the mutation at the injection point, if there is one. */
AD_INTERNAL void ad_inject(ad_injection_point point, void *passing);
/* Installs `slot` at the injection point and returns the mutation that was there before. */
AD_INTERNAL ad_injection ad_injection_set(ad_injection_point point, ad_injection slot);
ad_injection ad_injection_at(ad_injection_point point);
AD_INTERNAL void ad_injections_clear(void); /* removes all mutations from all injection points */

#endif
