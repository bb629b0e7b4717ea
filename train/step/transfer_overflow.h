/* Records values that are too large for the dtype of a transfer between modules (f16), and reports them if a step's
 * numbers are not finite. */
#ifndef TRAIN_TRANSFER_OVERFLOW_H
#define TRAIN_TRANSFER_OVERFLOW_H
#include "program/program.h"

typedef struct ad_run ad_run;

typedef struct ad_transfer_overflow {
  const ad_transfer_spec *spec; /* NULL if no transfer overflowed */
  int backward;                 /* 1: the overflow was in the gradient */
  double largest;               /* the largest value; that of a gradient contains the loss scale */
} ad_transfer_overflow;

ad_status ad_transfer_overflow_create(ad_run *run) AD_CHECKED;
void ad_transfer_overflow_destroy(ad_run *run);
/* Forgets the overflows that were recorded. Called before a step. */
void ad_transfer_overflow_clear(ad_run *run);
/* `to` is `from` cast to its communication dtype: the value of `spec` or, with `backward`, its gradient. Records the
 * largest number of `from` that became infinite in `to`. */
void ad_transfer_overflow_note(ad_run *run, const ad_transfer_spec *spec, int backward, const ad_array *to,
                               const ad_array *from);
/* Sets what ad_run_transfer_overflow returns, to the same on all ranks: the first value that any rank recorded or, if
 * there is none, the first gradient. Collective, so it may be called only if all ranks know that a number is not
 * finite. */
ad_status ad_transfer_overflow_agree(ad_run *run) AD_CHECKED;
/* Fails with AD_NUMBER and a message about the overflow that ad_run_transfer_overflow returns. */
ad_status ad_transfer_overflow_fail(const ad_run *run, int64_t step) AD_CHECKED;

#endif
