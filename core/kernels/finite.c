/* Finds infinite values and NaNs: floats whose exponent has all its bits set. */
#include "kernels/finite.h"

#include <math.h>
#include <string.h>
#include "base/dtypes.h"
#include "kernels/kernels.h"

enum { BLOCK = 4096 }; /* number of elements that are examined together, without a branch */

#define DEFINE_HAS(bits)                                                 \
  static int has_##bits(const char *data, uint64_t exponent, size_t n) { \
    uint##bits##_t found = 0, all = (uint##bits##_t)exponent, element;   \
    for (size_t i = 0; i < n; i++) {                                     \
      memcpy(&element, data + i * sizeof element, sizeof element);       \
      found |= (element & all) == all;                                   \
    }                                                                    \
    return found != 0;                                                   \
  }
DEFINE_HAS(8)
DEFINE_HAS(16)
DEFINE_HAS(32)
DEFINE_HAS(64)

/* Returns 1 if at least one of the n values is not finite. */
static int has_one(const char *data, ad_dtype dtype, size_t n) {
  if (!ad_dtype_is_float(dtype)) return 0;
  const ad_dtype_record *of = ad_dtype_of(dtype);
  uint64_t exponent = (((uint64_t)1 << of->exponent_bits) - 1) << of->fraction_bits;
  switch (of->size) {
    case 8:
      return has_64(data, exponent, n);
    case 4:
      return has_32(data, exponent, n);
    case 2:
      return has_16(data, exponent, n);
    default:
      return has_8(data, exponent, n);
  }
}

size_t ad_first_not_finite(const void *data, ad_dtype dtype, size_t n) {
  size_t size = ad_dtype_size(dtype);
  const char *bytes = data;
  size_t at = 0;
  while (at < n && !has_one(bytes + at * size, dtype, n - at < BLOCK ? n - at : BLOCK)) at += BLOCK;
  while (at < n && !has_one(bytes + at * size, dtype, 1)) at++;
  return at < n ? at : n;
}

double ad_largest_overflow(const void *to, ad_dtype to_dtype, const void *from, ad_dtype dtype, size_t n) {
  double largest = 0, value;
  for (size_t at = 0; at < n; at++) {
    at += ad_first_not_finite((const char *)to + at * ad_dtype_size(to_dtype), to_dtype, n - at);
    if (at == n) break;
    ad_cast(&value, AD_F64, (const char *)from + at * ad_dtype_size(dtype), dtype, 1);
    if (isfinite(value)) largest = fmax(largest, fabs(value));
  }
  return largest;
}
