/* Compares the memory that ranks and checks need with the memory that is available. */
#ifndef PLAN_FITS_H
#define PLAN_FITS_H
#include "addend/plan.h"
#include "addend/dtype.h"

/* Sets *out to the most bytes that all ranks of a recipe use at the same time, as the plan counts them. `dtype` has the
 * same meaning as in ad_run_options. */
ad_status ad_plan_needs(const ad_recipe *recipe, ad_dtype dtype, size_t *out) AD_CHECKED;

/* Fails or warns, as ad_plan_fits does, if `bytes` are not available. `what` begins the message ("... need"). `root` is
 * the argument of ad_process_memory_room. */
ad_status ad_memory_fits(const char *root, const char *what, size_t bytes) AD_CHECKED;

#endif
