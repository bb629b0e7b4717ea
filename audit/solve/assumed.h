/* A second reading of a sum along axes whose type I is only assumed (addend.assumed): where ranks turn out to have parts
 * of the gradient, the sum over them was wanted. */
#ifndef DIFF_ASSUMED_H
#define DIFF_ASSUMED_H
#include "read/part.h"

typedef enum ad_assumed_kind {
  AD_ASSUMED_NONE,     /* no sum over assumed axes gives it */
  AD_ASSUMED_SUM,      /* the sum over `axes`, whose addends differ: these axes are R */
  AD_ASSUMED_MEAN,     /* the mean over `axes` of the same addends, which is each of them: these axes are I */
  AD_ASSUMED_EITHER,   /* the sum over `axes` of addends that are nearly the same: R or counted several times */
  AD_ASSUMED_ESTIMATES /* the mean over `axes` of addends that differ: estimates of one gradient, or divided too often */
} ad_assumed_kind;

typedef struct ad_assumed {
  ad_assumed_kind kind;
  uint32_t axes;  /* the axes of the sum or mean; 0 for AD_ASSUMED_NONE */
  uint32_t apart; /* the assumed axes along which addends differ by more than rounding makes of the same work */
} ad_assumed;

/* Finds the second reading of a parameter that its first reading calls wrong. */
ad_status ad_assumed_find(const ad_parts *parts, ad_assumed *out) AD_CHECKED;
/* The parameter with type R on `axes`. */
ad_dump_param ad_assumed_as_summed(const ad_dump_param *param, uint32_t axes);

#endif
