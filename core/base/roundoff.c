/* The precision and the range of floating dtypes. */
#include "base/roundoff.h"

#include <math.h>
#include "base/dtypes.h"

double ad_unit_roundoff(ad_dtype dtype) {
  return ad_dtype_is_float(dtype) ? ldexp(1, -ad_dtype_of(dtype)->fraction_bits - 1) : 1;
}

double ad_smallest_number(ad_dtype dtype) {
  if (!ad_dtype_is_float(dtype)) return 0;
  const ad_dtype_record *of = ad_dtype_of(dtype);
  int least_exponent = 2 - (1 << (of->exponent_bits - 1)); /* the exponent of the smallest normal number */
  return ldexp(1, least_exponent - of->fraction_bits);
}

double ad_largest_number(ad_dtype dtype) {
  if (!ad_dtype_is_float(dtype)) return 0;
  const ad_dtype_record *of = ad_dtype_of(dtype);
  return ldexp(2 - ldexp(1, -of->fraction_bits), (1 << (of->exponent_bits - 1)) - 1);
}

int ad_dtype_needs_scale(ad_dtype dtype) {
  return ad_dtype_is_float(dtype) && ad_dtype_of(dtype)->exponent_bits < ad_dtype_of(AD_F32)->exponent_bits;
}

int ad_dtype_holds(ad_dtype wide, ad_dtype narrow) {
  const ad_dtype_record *of = ad_dtype_of(wide), *in = ad_dtype_of(narrow);
  return of->exponent_bits >= in->exponent_bits && of->fraction_bits >= in->fraction_bits;
}

/* Returns 1 if dtype `a` comes after `b` in the order of precision, from the finest on; dtypes of equal precision
 * are in the order of their numbers in ad_dtype. */
static int comes_after(ad_dtype a, ad_dtype b) {
  double of_a = ad_unit_roundoff(a), of_b = ad_unit_roundoff(b);
  return of_a > of_b || (of_a == of_b && a > b);
}

ad_dtype ad_dtype_coarser(ad_dtype dtype) {
  ad_dtype next = 0;
  for (ad_dtype other = AD_F64; ad_dtype_of(other); other++)
    if (ad_dtype_is_float(other) && comes_after(other, dtype) && (!next || comes_after(next, other))) next = other;
  return next;
}

double ad_step_up(double x, ad_dtype dtype) {
  int exponent;
  if (x > 0) (void)frexp(x, &exponent);
  return fmax(x > 0 ? ldexp(ad_unit_roundoff(dtype), exponent) : 0, ad_smallest_number(dtype));
}

int ad_is_number_of(ad_dtype dtype, double x) {
  return fabs(x) <= ad_largest_number(dtype) && fmod(fabs(x), ad_step_up(fabs(x), dtype)) == 0;
}
