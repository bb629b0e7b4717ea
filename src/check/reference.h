/* The reference of a proof: the same recipe in one process, on a world of one rank. */
#ifndef CHECK_REFERENCE_H
#define CHECK_REFERENCE_H
#include "addend/train.h"

typedef struct ad_reference ad_reference;
/* Gradients are computed in f64, without ZeRO, whatever the recipe says; the optimizer is fed in `dtype` (0: as the
 * recipe says). `several_steps` also keeps a run that never restarts, for the free-running difference. */
ad_status ad_reference_create(const ad_recipe *recipe, ad_dtype dtype, int several_steps,
                              ad_reference **out) AD_CHECKED;
void ad_reference_destroy(ad_reference *reference);

/* Which array of a parameter: its value, its master (the value itself where its dtype is wide enough), or a moment of
 * its optimizer. */
typedef enum ad_restart_part {
  AD_RESTART_VALUE,
  AD_RESTART_MASTER,
  AD_RESTART_FIRST_MOMENT,
  AD_RESTART_SECOND_MOMENT,
  AD_RESTART_COUNT
} ad_restart_part;
/* That array of the distributed run before its step, whole; the coming step starts from it. */
void ad_reference_restart(ad_reference *reference, size_t param, ad_restart_part part, const ad_array *whole);
/* The step of the gradients, from the values that restarted it, with every switch off. */
ad_status ad_reference_step(ad_reference *reference, int64_t step, ad_step_report *out) AD_CHECKED;
const ad_array *ad_reference_gradient(const ad_reference *reference, size_t param);
/* Whether that array of the distributed run before its step is what the reference itself has: at the first step,
 * whether all topologies draw the same initial values. */
int ad_reference_agrees(ad_reference *reference, size_t param, ad_restart_part part, const ad_array *whole);
/* The optimizer alone, from the same start, fed the whole distributed gradients as they come. */
ad_status ad_reference_feed(ad_reference *reference, const ad_array *const *gradients, double lr,
                            double factor) AD_CHECKED;
/* Whether that array of the distributed run after its step is what the fed optimizer made, bit for bit. */
int ad_reference_fed_agrees(ad_reference *reference, size_t param, ad_restart_part part, const ad_array *whole);
const ad_array *ad_reference_free_value(const ad_reference *reference,
                                        size_t param); /* its master; NULL without several_steps */

#endif
