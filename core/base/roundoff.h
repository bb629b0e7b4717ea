/* The precision of dtypes. */
#ifndef BASE_ROUNDOFF_H
#define BASE_ROUNDOFF_H
#include "addend/dtype.h"
#include "base/internal.h"

AD_INTERNAL double ad_unit_roundoff(
    ad_dtype dtype); /* the largest relative error of rounding to nearest, if nothing underflows */
AD_INTERNAL double ad_smallest_number(ad_dtype dtype); /* the smallest number above 0, a subnormal */

#endif
