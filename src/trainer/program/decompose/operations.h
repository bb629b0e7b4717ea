/* Operations of its own: what is kept of a value, and what of it is used. Their records stand here for the test that
 * holds them to what they say. */
#ifndef PROGRAM_DECOMPOSE_OPERATIONS_H
#define PROGRAM_DECOMPOSE_OPERATIONS_H
#include "addend/operation.h"

typedef enum ad_slope { AD_SLOPE_RETURNS, AD_SLOPE_PLAIN } ad_slope; /* of ad_lower */
extern const ad_operation ad_returning_lower_record, ad_plain_lower_record, ad_upper_record, ad_mix_record;
/* clamp(x, 0, 1), elementwise. Its backward is not that of a clamp: of a gradient g it passes g where x is in [0, 1],
 * nothing above, and below 0, where g < 0, 0.01 g: what was pushed out may come back. That is not linear in g, so the
 * addends of g are to be summed before: AD_TYPE where the result is R and its gradient would be P. AD_SLOPE_PLAIN: the
 * clamp's own slope, 1 in [0, 1], both ends too, and 0 outside, for proofs along a direction. */
ad_tensor *ad_lower_at(ad_tape *tape, ad_tensor *x, ad_slope slope, const char *site);
#define ad_lower(t, x, slope) ad_lower_at((t), (x), (slope), AD_HERE)
/* 1 + 0.01 (x - 1) for x > 1, else clamp(x, 0, 1), elementwise, with its own slope: 0 below 0, 1 from 0 to 1, at both
 * ends too, and 0.01 above. */
ad_tensor *ad_upper_at(ad_tape *tape, ad_tensor *x, const char *site);
#define ad_upper(t, x) ad_upper_at((t), (x), AD_HERE)
/* x + (1 - x) u, elementwise: x where u is 0, 1 where u is 1. */
ad_tensor *ad_mix_at(ad_tape *tape, ad_tensor *x, ad_tensor *u, const char *site);
#define ad_mix(t, x, u) ad_mix_at((t), (x), (u), AD_HERE)

typedef struct ad_power_numbers {
  double epsilon, p;
} ad_power_numbers;
extern const ad_operation ad_power_sums_record; /* its own: ad_power_numbers */
/* x [..., c] -> [c], of each column the sum over all rows of (x + epsilon)^p: P where rows are cut. */
ad_tensor *ad_power_sums_at(ad_tape *tape, ad_tensor *x, double epsilon, double p, const char *site);
#define ad_power_sums(t, x, epsilon, p) ad_power_sums_at((t), (x), (epsilon), (p), AD_HERE)

extern const ad_operation ad_sparsity_record; /* its own: beta, a double */
/* Of sums [c], each of all rows, the sum over c of s (1 + beta log2(1 + s)): the numerator, the count is that of the
 * rows. AD_TYPE where they are P: they stand inside the logarithm. */
ad_tensor *ad_sparsity_at(ad_tape *tape, ad_tensor *sums, double beta, const char *site);
#define ad_sparsity(t, sums, beta) ad_sparsity_at((t), (sums), (beta), AD_HERE)

#endif
