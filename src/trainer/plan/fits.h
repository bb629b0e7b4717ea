/* Holding what ranks and proofs need against the memory that there is. */
#ifndef PLAN_FITS_H
#define PLAN_FITS_H
#include "addend/plan.h"
#include "addend/dtype.h"

/* What all ranks of a recipe hold at most, together, as the plan counts it; `dtype` is that of ad_run_options. */
ad_status ad_plan_needs(const ad_recipe *recipe, ad_dtype dtype, size_t *out) AD_CHECKED;

/* The words of ad_plan_fits; `what` needs so many bytes. `root`: as ad_process_memory_room takes it. */
ad_status ad_memory_fits(const char *root, const char *what, size_t bytes) AD_CHECKED;

#endif
