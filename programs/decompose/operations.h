/* Operations that only this program has: clamps, mix, sums of powers, sparsity. Their records are declared here because
 * a test uses them. */
#ifndef DECOMPOSE_OPERATIONS_H
#define DECOMPOSE_OPERATIONS_H
#include "addend/operation.h"

typedef enum ad_slope { AD_SLOPE_RETURNS, AD_SLOPE_PLAIN } ad_slope; /* the slope in ad_lower's backward below 0 */
extern const ad_operation ad_returning_lower_record, ad_plain_lower_record, ad_upper_record, ad_mix_record;
/* Returns clamp(x, 0, 1), elementwise. AD_SLOPE_RETURNS: for a gradient g, backward passes g if x is in [0, 1], nothing
 * if x > 1, and 0.01 g if x < 0 and g < 0, so that an x below 0 can come back. This is not linear in g, so the addends
 * of g must be summed first: returns AD_TYPE if the result is R and its gradient would be P. AD_SLOPE_PLAIN: backward
 * uses the clamp's true slope (1 in [0, 1] with both ends, 0 outside), so that finite differences agree with it. */
ad_tensor *ad_lower_at(ad_tape *tape, ad_tensor *x, ad_slope slope, const char *site);
#define ad_lower(t, x, slope) ad_lower_at((t), (x), (slope), AD_HERE)
/* Returns 1 + 0.01 (x - 1) where x > 1, else clamp(x, 0, 1), elementwise. Backward uses the true slope: 0 below 0, 1 in
 * [0, 1] with both ends, 0.01 above. */
ad_tensor *ad_upper_at(ad_tape *tape, ad_tensor *x, const char *site);
#define ad_upper(t, x) ad_upper_at((t), (x), AD_HERE)
/* Returns x + (1 - x) u, elementwise: x where u is 0, 1 where u is 1. */
ad_tensor *ad_mix_at(ad_tape *tape, ad_tensor *x, ad_tensor *u, const char *site);
#define ad_mix(t, x, u) ad_mix_at((t), (x), (u), AD_HERE)

typedef struct ad_power_numbers {
  double epsilon, p;
} ad_power_numbers;
extern const ad_operation ad_power_sums_record; /* the operation's `own` is an ad_power_numbers */
/* Returns, for x [..., c], the sum over all rows of (x + epsilon)^p for each column, [c]. P on axes that shard rows. */
ad_tensor *ad_power_sums_at(ad_tape *tape, ad_tensor *x, double epsilon, double p, const char *site);
#define ad_power_sums(t, x, epsilon, p) ad_power_sums_at((t), (x), (epsilon), (p), AD_HERE)

extern const ad_operation ad_sparsity_record; /* the operation's `own` is beta, a double */
/* Returns, for `sums` [c] over all rows, the sum over c of s (1 + beta log2(1 + s)). This is the numerator of a loss
 * whose count is the number of rows. Returns AD_TYPE if the sums are P, because the logarithms of addends do not add up
 * to the logarithm of a sum. */
ad_tensor *ad_sparsity_at(ad_tape *tape, ad_tensor *sums, double beta, const char *site);
#define ad_sparsity(t, sums, beta) ad_sparsity_at((t), (sums), (beta), AD_HERE)

#endif
