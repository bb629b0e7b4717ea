/* Sums each rank's microbatch gradients (the addends of a gradient) in f64, before any reduction rounds them; on
 * request also sums their absolute values, which limit how much rounding may change a sum. */
#ifndef CHECK_ADDENDS_H
#define CHECK_ADDENDS_H
#include "addend/train.h"

/* Sums of addends: one f64 array for each parameter. */
typedef struct ad_addend_sums {
  ad_array *local; /* the sum of this rank's addends, in the gradient's layout */
  ad_array *full;  /* the sum over all ranks, of type R */
} ad_addend_sums;

typedef struct ad_addends {
  ad_run *run;
  size_t count;
  /* `sizes`: sums of the addends' absolute values; its arrays are NULL unless they are wanted */
  ad_addend_sums themselves, sizes;
  int loss_scale; /* exponent of the loss scale by which the addends are multiplied until they are summed */
} ad_addends;

ad_status ad_addends_create(ad_run *run, int with_sizes, ad_addends *out) AD_CHECKED;
void ad_addends_destroy(ad_addends *addends);
/* Computes the addends of step `step` from the values that the run's parameters have now, and sums them over all ranks
 * into `full`. `report` gets the step's losses; NULL allowed. `loss_scale` is the exponent of the loss scale in the
 * backward pass, 0 unless a gradient is f16 somewhere. Collective. */
ad_status ad_addends_measure(ad_addends *addends, int64_t step, int loss_scale, ad_step_report *report) AD_CHECKED;

#endif
