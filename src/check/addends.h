/* What a gradient is summed from, each rank's microbatch gradients before any reduction: their sizes, or they
 * themselves, summed in f64. */
#ifndef CHECK_ADDENDS_H
#define CHECK_ADDENDS_H
#include "addend/train.h"

typedef struct ad_addends {
  ad_run *run;
  size_t count;
  double (*of)(double addend); /* what of each addend is summed */
  ad_array *local;             /* f64, in the layout of the gradients: this rank's sums */
  ad_array *whole;             /* f64, R: those of all ranks */
} ad_addends;

/* `of`: ad_addend_size or ad_addend_itself. */
ad_status ad_addends_create(ad_run *run, double (*of)(double addend), ad_addends *out) AD_CHECKED;
void ad_addends_destroy(ad_addends *addends);
/* Measures step `step` at the present values and fills `whole`; report: its losses, or NULL. Collective. */
ad_status ad_addends_measure(ad_addends *addends, int64_t step, ad_step_report *report) AD_CHECKED;

double ad_addend_size(double addend);
double ad_addend_itself(double addend);

#endif
