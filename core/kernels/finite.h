/* Finds infinite values and NaNs. */
#ifndef KERNELS_FINITE_H
#define KERNELS_FINITE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "base/internal.h"

/* The index of the first of n floats that is infinite or NaN; n if all are finite. `data` need not be aligned, because
 * values in a mapped file lie wherever the file has them. */
AD_INTERNAL size_t ad_first_not_finite(const void *data, ad_dtype dtype, size_t n);
/* The largest absolute value among those of n values that are finite in `from` and not finite in their casts `to`; 0:
 * no finite value overflowed. */
AD_INTERNAL double ad_largest_overflow(const void *to, ad_dtype to_dtype, const void *from, ad_dtype dtype, size_t n);

#endif
