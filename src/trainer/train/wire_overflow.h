/* Values that are too large for the f16 of a wire between modules: noted where they are rounded, told when a step's
 * numbers are not finite. */
#ifndef TRAIN_WIRE_OVERFLOW_H
#define TRAIN_WIRE_OVERFLOW_H
#include "program/program.h"

typedef struct ad_run ad_run;

typedef struct ad_wire_overflow {
  const ad_crossing_spec *spec; /* NULL: nothing overflowed on a wire */
  int backward;                 /* the gradient, on its way back */
  double largest;               /* with the loss scale that gradients carry */
} ad_wire_overflow;

ad_status ad_wire_overflow_create(ad_run *run) AD_CHECKED;
void ad_wire_overflow_destroy(ad_run *run);
/* Before a step. */
void ad_wire_overflow_clear(ad_run *run);
/* `to` is the cast of `from`, of `spec` or its gradient. */
void ad_wire_overflow_note(ad_run *run, const ad_crossing_spec *spec, int backward, const ad_array *to,
                           const ad_array *from);
/* Into ad_run_wire_overflow, the same on all ranks: of what any of them noted the first value, or else the first gradient.
 * Collective: where all ranks know that a number is not finite. */
ad_status ad_wire_overflow_agree(ad_run *run) AD_CHECKED;
/* AD_NUMBER, with what ad_run_wire_overflow has. */
ad_status ad_wire_overflow_fail(const ad_run *run, int64_t step) AD_CHECKED;

#endif
