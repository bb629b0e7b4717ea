/* The sizes of what a gradient is summed from: each rank's microbatch gradients, before any reduction. */
#ifndef CHECK_ADDENDS_H
#define CHECK_ADDENDS_H
#include "addend/train.h"

typedef struct ad_addends {
  ad_run *run;
  size_t count;
  ad_array *local; /* f64, in the layout of the gradients: this rank's sums of absolute values */
  ad_array *whole; /* f64, R: those of all ranks */
} ad_addends;

ad_status ad_addends_create(ad_run *run, ad_addends *out) AD_CHECKED;
void ad_addends_destroy(ad_addends *addends);
/* Measures step `step` at the present values and fills `whole`. Collective. */
ad_status ad_addends_measure(ad_addends *addends, int64_t step) AD_CHECKED;

#endif
