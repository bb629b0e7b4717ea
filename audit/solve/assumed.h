/* Another interpretation of a sum. A dump may only assume that some axes have type I (addend.assumed). If the addends
 * along such an axis differ, each rank has a part of the gradient, and the sum over the axis was wanted. */
#ifndef DIFF_ASSUMED_H
#define DIFF_ASSUMED_H
#include "read/part.h"

typedef enum ad_assumed_kind {
  AD_ASSUMED_NONE,     /* no sum or mean over assumed axes gives the dumped sum */
  AD_ASSUMED_SUM,      /* the dumped sum is the sum over `axes` of addends that differ: these axes are R */
  AD_ASSUMED_MEAN,     /* the mean over `axes` of equal addends, which equals each addend: these axes are I */
  AD_ASSUMED_EITHER,   /* the sum over `axes` of nearly equal addends: R axes, or one gradient counted several times */
  AD_ASSUMED_ESTIMATES /* the mean over `axes` of addends that differ: estimates of one gradient, or divided too often */
} ad_assumed_kind;

typedef struct ad_assumed {
  ad_assumed_kind kind;
  uint32_t axes;  /* the axes over which the sum or mean goes; 0 for AD_ASSUMED_NONE */
  uint32_t apart; /* the assumed axes along which addends differ by more than rounding explains */
} ad_assumed;

/* Finds another interpretation of a parameter whose sum is wrong by the assumed types. */
ad_status ad_assumed_find(const ad_parts *parts, ad_assumed *out) AD_CHECKED;
/* Returns a copy of the parameter with type R on `axes`. */
ad_dump_param ad_assumed_as_summed(const ad_dump_param *param, uint32_t axes);

#endif
