/* Exact sums of doubles: an accumulator that rounds nothing. Its value is rounded once, when it is read, and so does
 * not depend on the order of additions, nor on the division of the additions among ranks. */
#ifndef BASE_EXACT_H
#define BASE_EXACT_H
#include <stdint.h>
#include "base/internal.h"

enum { AD_EXACT_LIMBS = 68, AD_EXACT_UNCARRIED_MAX = 1 << 29 };

/* A sum of doubles, as an integer in units of 2^-1074, the smallest positive double: the integer is the sum of
 * limb[i] 2^(32 i). An empty sum is all zeros. All members are int64_t, and two sums, for example of two ranks, are
 * added by adding each member. At most 2^30 sums may be added in this way, each after ad_exact_carry. */
typedef struct ad_exact {
  int64_t limb[AD_EXACT_LIMBS];
  int64_t nans, infinities, negative_infinities; /* how many NaNs and infinities were added */
  int64_t uncarried;                             /* number of additions since the last ad_exact_carry */
} ad_exact;
enum { AD_EXACT_NUMBERS = sizeof(ad_exact) / sizeof(int64_t) };

AD_INTERNAL void ad_exact_add(ad_exact *sum, double value);
void ad_exact_add_sum(ad_exact *to, const ad_exact *from); /* adds each member of *from to that of *to */
/* Brings every limb except the last, which has the sum's sign, into [0, 2^32). The sum stays the same. */
AD_INTERNAL void ad_exact_carry(ad_exact *sum);
/* Returns the double nearest to the sum (of two equally near ones, the even one). Sums of infinities and NaN are as
 * in IEEE 754; a sum of zeros is +0. */
AD_INTERNAL double ad_exact_value(const ad_exact *sum);

#endif
