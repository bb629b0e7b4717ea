/* What a gradient is summed from, each rank's microbatch gradients before any reduction: summed in f64, they and their
 * sizes. */
#ifndef CHECK_ADDENDS_H
#define CHECK_ADDENDS_H
#include "addend/train.h"

/* One array for each parameter. */
typedef struct ad_addend_sums {
  ad_array *local; /* f64, in the layout of the gradients: this rank's sums */
  ad_array *whole; /* f64, R: those of all ranks */
} ad_addend_sums;

typedef struct ad_addends {
  ad_run *run;
  size_t count;
  ad_addend_sums themselves, sizes; /* sizes: of absolute values; NULL unless wanted */
  int loss_scale;                   /* exponent that they carry until they are summed */
} ad_addends;

ad_status ad_addends_create(ad_run *run, int with_sizes, ad_addends *out) AD_CHECKED;
void ad_addends_destroy(ad_addends *addends);
/* Measures step `step` at the present values and fills `whole`; report: its losses, or NULL. Collective. `loss_scale`:
 * the exponent that the backward carries, where some way of its gradients is f16. */
ad_status ad_addends_measure(ad_addends *addends, int64_t step, int loss_scale, ad_step_report *report) AD_CHECKED;

#endif
