/* Exact sums of doubles: adds doubles and other sums, carries, and rounds a sum once, when it is read. */
#include "base/exact.h"

#include <math.h>
#include <string.h>

enum { LIMB_BITS = 32, LEAST_EXPONENT = -1074, FRACTION_BITS = 52 };
static const int64_t limb_mask = (INT64_C(1) << LIMB_BITS) - 1;

static void count_special(ad_exact *sum, double value) {
  if (isnan(value)) {
    sum->nans++;
  } else if (value > 0) {
    sum->infinities++;
  } else {
    sum->negative_infinities++;
  }
}

void ad_exact_add(ad_exact *sum, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint64_t fraction = bits & ((UINT64_C(1) << FRACTION_BITS) - 1);
  unsigned exponent = (unsigned)(bits >> FRACTION_BITS) & 0x7ff;
  if (exponent == 0x7ff) {
    count_special(sum, value);
    return;
  }
  // The value is fraction * 2^shift units (of 2^-1074).
  unsigned shift = exponent ? exponent - 1 : 0;
  if (exponent) fraction |= UINT64_C(1) << FRACTION_BITS;
  unsigned __int128 units = (unsigned __int128)fraction << (shift % LIMB_BITS);
  int64_t sign = bits >> 63 ? -1 : 1, *limb = &sum->limb[shift / LIMB_BITS];
  for (int i = 0; i < 3; i++) limb[i] += sign * ((int64_t)(units >> (i * LIMB_BITS)) & limb_mask);
  if (++sum->uncarried >= AD_EXACT_UNCARRIED_MAX) ad_exact_carry(sum);
}

void ad_exact_add_sum(ad_exact *to, const ad_exact *from) {
  for (int i = 0; i < AD_EXACT_LIMBS; i++) to->limb[i] += from->limb[i];
  to->nans += from->nans;
  to->infinities += from->infinities;
  to->negative_infinities += from->negative_infinities;
  to->uncarried += from->uncarried;
}

void ad_exact_carry(ad_exact *sum) {
  for (int i = 0; i < AD_EXACT_LIMBS - 1; i++) {
    int64_t kept = sum->limb[i] & limb_mask;
    sum->limb[i + 1] += (sum->limb[i] - kept) / (limb_mask + 1);
    sum->limb[i] = kept;
  }
  sum->uncarried = 0;
}

/* Returns bits [first, first + 64) of a sum that is carried (ad_exact_carry) and not negative; bits below bit 0 are
 * 0. The lowest returned bit is also 1 if any bit below bit `first` is 1. */
static uint64_t take_bits(const ad_exact *sum, int first) {
  uint64_t taken = 0;
  for (int i = 0; i < AD_EXACT_LIMBS; i++) {
    uint64_t limb = (uint64_t)sum->limb[i];
    int at = i * LIMB_BITS - first;
    if (at >= 64) break;
    if (at >= 0) {
      taken |= limb << at;
    } else {
      int below = -at < 63 ? -at : 63;
      taken |= limb >> below;
      taken |= (limb & ((UINT64_C(1) << below) - 1)) != 0;
    }
  }
  return taken;
}

/* Returns the value of a sum that is carried (ad_exact_carry) and not negative. */
static double round_finite(const ad_exact *sum) {
  int top = AD_EXACT_LIMBS - 1;
  while (top > 0 && !sum->limb[top]) top--;
  // The 64 bits from `first` on contain the whole sum, or at least 10 bits more than a double has. These bits, and
  // whether any lower bit is 1, decide how the conversion rounds.
  int bits = top * LIMB_BITS + (sum->limb[top] ? 64 - __builtin_clzll((unsigned long long)sum->limb[top]) : 0);
  int first = bits > 64 ? bits - 64 : 0;
  return ldexp((double)take_bits(sum, first), first + LEAST_EXPONENT);
}

double ad_exact_value(const ad_exact *sum) {
  if (sum->nans || (sum->infinities && sum->negative_infinities)) return NAN;
  if (sum->infinities) return INFINITY;
  if (sum->negative_infinities) return -INFINITY;
  ad_exact carried = *sum;
  ad_exact_carry(&carried);
  if (carried.limb[AD_EXACT_LIMBS - 1] >= 0) return round_finite(&carried);
  for (int i = 0; i < AD_EXACT_LIMBS; i++) carried.limb[i] = -carried.limb[i];
  ad_exact_carry(&carried);
  return -round_finite(&carried);
}
