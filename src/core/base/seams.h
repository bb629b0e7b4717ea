/* Seams: places where something passes that a known mistake would change (the batch that is read, a norm, a bucket on
 * its way). Product code hands over what passes and knows of no mistake; a mistake, planted by tests and by sabotage,
 * is a function at a seam. With none planted a seam costs a call and the test of one pointer. */
#ifndef BASE_SEAMS_H
#define BASE_SEAMS_H
#include <stddef.h>
#include "base/internal.h"

typedef enum ad_seam {
  AD_SEAM_CALL,          /* ad_call_passing *: a collective is about to be posted */
  AD_SEAM_TRANSIT,       /* ad_transit_passing *: a transition is about to be executed */
  AD_SEAM_RECORD,        /* ad_record_passing *: a transition is about to be recorded on a tape */
  AD_SEAM_OPERANDS,      /* ad_operation_passing *: an operation is about to be recorded on a tape */
  AD_SEAM_REFUSED,       /* ad_operation_passing *: an operation was refused, and its tape failed with that */
  AD_SEAM_RING,          /* ring_passing *: keys are about to go around a ring */
  AD_SEAM_RING_TURN,     /* ring_turn_passing *: keys that came around a ring are about to be attended */
  AD_SEAM_RING_GATHERED, /* int *: whether what other ranks gathered is added to a rank's own addends */
  AD_SEAM_ROUTES,        /* ad_route_passing *: rows are about to go over a bridge */
  AD_SEAM_WIRE,          /* ad_wire_passing *: the dtype in which a value or gradient is about to go over a bridge */
  AD_SEAM_POSITIONS,     /* positions *: of the sequence, that rotary positions are about to be made of */
  AD_SEAM_PRODUCT,       /* gemm_passing *: a matrix product is about to be made */
  AD_SEAM_STATISTIC,     /* double *: what a row of values is normalised by */
  AD_SEAM_RESIDUAL,      /* ad_dtype *: of the residual stream that is about to be recorded */
  AD_SEAM_SLOT_SCORES,   /* slot_scores_passing *: gradients of slots are about to become those of scores */
  AD_SEAM_READ,          /* int64_t *: the step whose batch this rank is about to read */
  AD_SEAM_ARRIVED,       /* ad_crossing_passing *: a value came from other ranks */
  AD_SEAM_RETURNED,      /* ad_crossing_passing *: the gradient of a value came back from other ranks */
  AD_SEAM_STATE,         /* ad_state_passing *: the gradient by which a program is about to change a state */
  AD_SEAM_STATES,        /* ad_states_passing *: a program changed states of a microbatch by gradients */
  AD_SEAM_PHASE,         /* size_t *: the number of the microbatch in which a phase is about to run */
  AD_SEAM_DIVISOR,       /* ad_divisor_passing *: a loss is about to be divided */
  AD_SEAM_CONTRACT,      /* ad_contract *: by which a gradient is about to get its bucket */
  AD_SEAM_MICROBATCH,    /* ad_reducer *: a microbatch has begun */
  AD_SEAM_STRAIGHT,      /* int *: whether a gradient may be written into its bucket as it is */
  AD_SEAM_BROUGHT,       /* ad_dtype *: what a gradient is about to be brought to before its bucket */
  AD_SEAM_ADDED,         /* ad_added_passing *: a gradient was added to earlier ones */
  AD_SEAM_ORDER,         /* ad_order_passing *: a bucket is chosen to be launched */
  AD_SEAM_LAUNCH,        /* ad_bucket_passing *: a bucket is about to be sent */
  AD_SEAM_REDUCED,       /* ad_bucket_passing *: a step of a bucket's path is complete */
  AD_SEAM_GRADIENTS,     /* ad_run *: all gradients of a step are reduced and nothing was done with them yet */
  AD_SEAM_NORM,          /* double *: the norm that decides about the step */
  AD_SEAM_UPDATED,       /* ad_array *: the optimizer wrote a parameter's master */
  AD_SEAM_COUNT
} ad_seam;

typedef void (*ad_seam_function)(void *context, void *passing);
typedef struct ad_seam_slot {
  ad_seam_function function; /* NULL: what passes, passes */
  void *context;
} ad_seam_slot;

AD_INTERNAL void ad_seam_pass(ad_seam seam, void *passing);
/* From now on this is at the seam. Returns what was there. */
AD_INTERNAL ad_seam_slot ad_seam_plant(ad_seam seam, ad_seam_slot slot);
ad_seam_slot ad_seam_planted(ad_seam seam);
AD_INTERNAL void ad_seams_clear(void); /* nothing is planted any more */

#endif
