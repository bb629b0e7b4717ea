/* The precision of dtypes. */
#include "base/roundoff.h"

double ad_unit_roundoff(ad_dtype dtype) {
  switch (dtype) {
    case AD_F64:
      return 0x1p-53;
    case AD_F32:
      return 0x1p-24;
    case AD_F16:
      return 0x1p-11;
    default:
      return 0x1p-8;
  }
}

/* The smallest subnormal number of each dtype. */
double ad_smallest_number(ad_dtype dtype) {
  switch (dtype) {
    case AD_F32:
      return 0x1p-149;
    case AD_BF16:
      return 0x1p-133;
    case AD_F16:
      return 0x1p-24;
    default:
      return 0x1p-1074;
  }
}
