/* How far rounding may carry a reduced gradient from the exact sum of its addends, counted from the contract and the
 * path: docs/dtypes.md says why. */
#ifndef CHECK_ROUNDING_H
#define CHECK_ROUNDING_H
#include "addend/recipe.h"

/* For each element: relative * (sum of its addends' absolute values) + absolute. */
typedef struct ad_allowance {
  double relative, absolute;
} ad_allowance;

/* Of a complete contract. `result` is the dtype in which the reducer hands the gradient out; `loss_scale` the exponent
 * that the gradients carry. */
ad_allowance ad_rounding_allowance(const ad_recipe *recipe, const ad_param_spec *spec, ad_dtype result, int loss_scale);
double ad_unit_roundoff(ad_dtype dtype); /* largest relative error of rounding to nearest, without underflow */

/* The element that lies nearest to, or furthest beyond, what it is allowed: its error and its allowance, both over
 * max(max|ref|, floor). Allowed are `compute` times that same scale and, where `sums` (of the addends' absolute
 * values) is not NULL, what `allowance` says. NaN if a value is not finite. */
void ad_judge_elements(const double *dist, const double *ref, const double *sums, size_t numel, double floor,
                       double compute, ad_allowance allowance, double *error, double *bound);
/* Sum over the elements of the squares of what they are allowed. */
double ad_allowed_squares(const double *ref, const double *sums, size_t numel, double floor, double compute,
                          ad_allowance allowance);

#endif
