/* Finding values that are no finite numbers. */
#ifndef KERNELS_FINITE_H
#define KERNELS_FINITE_H
#include <stddef.h>
#include <stdint.h>
#include "addend/dtype.h"
#include "base/internal.h"

/* The index of the first of n floats that is infinite or NaN; n if all are finite. `data` need not be aligned: values
 * of a mapped file stand where the file has them. */
AD_INTERNAL size_t ad_first_not_finite(const void *data, ad_dtype dtype, size_t n);
/* The largest of n values, by size, that are finite in `from` and no longer in `to`, their casts; 0: all that were
 * finite are. */
AD_INTERNAL double ad_largest_overflow(const void *to, ad_dtype to_dtype, const void *from, ad_dtype dtype, size_t n);

#endif
