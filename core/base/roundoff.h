/* The precision and the range of floating dtypes. They follow from the bits of exponent and fraction in the dtype's
 * record (dtypes.h), as in IEEE 754. */
#ifndef BASE_ROUNDOFF_H
#define BASE_ROUNDOFF_H
#include "addend/dtype.h"
#include "base/internal.h"

/* Returns the largest relative error of rounding to nearest, if nothing underflows; 1 for a dtype that is no float. */
AD_INTERNAL double ad_unit_roundoff(ad_dtype dtype);
/* Returns the smallest number above 0, which is subnormal; 0 for a dtype that is no float. */
AD_INTERNAL double ad_smallest_number(ad_dtype dtype);
/* Returns the largest finite number; 0 for a dtype that is no float. */
AD_INTERNAL double ad_largest_number(ad_dtype dtype);
/* Returns 1 if the dtype's range is smaller than that of f32, in which gradients are computed. Gradients and their
 * sums are then scaled before they are stored in the dtype. */
AD_INTERNAL int ad_dtype_needs_scale(ad_dtype dtype);
/* Returns 1 if every value of the float `narrow` is also one of the float `wide`. */
AD_INTERNAL int ad_dtype_holds(ad_dtype wide, ad_dtype narrow);
/* Returns the float after `dtype` in the order of precision, from the finest to the coarsest (f64, f32, f16, bf16); 0
 * after the coarsest. */
ad_dtype ad_dtype_coarser(ad_dtype dtype);
/* Returns the distance from x, 0 or more and a number of the floating-point dtype, to the next larger one. */
double ad_step_up(double x, ad_dtype dtype);
/* Returns 1 if x is a number of the floating-point dtype. */
int ad_is_number_of(ad_dtype dtype, double x);

#endif
