/* Finds infinite values and NaNs. */
#ifndef KERNELS_FINITE_H
#define KERNELS_FINITE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "base/internal.h"

/* Returns the index of the first of n floats that is infinite or NaN, or n if all are finite. `data` need not be
 * aligned, because values in a mapped file may lie at any address. */
AD_INTERNAL size_t ad_first_not_finite(const void *data, ad_dtype dtype, size_t n);
/* Returns the largest absolute value among the values that overflowed: finite in `from`, but not finite in their casts
 * `to`. Returns 0 if no value overflowed. */
AD_INTERNAL double ad_largest_overflow(const void *to, ad_dtype to_dtype, const void *from, ad_dtype dtype, size_t n);

#endif
