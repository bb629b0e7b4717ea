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

/* How far a gradient lies from its reference. Each element is allowed what `allowance` says of `sums` (of its addends'
 * absolute values); what exceeds that, over all elements a norm of `computing`. */
typedef struct ad_error {
  double norm; /* of the differences; NaN if a value is not finite */
  double
      share; /* by which both allowances would have to be multiplied to just hold; NaN: no number, or nothing would */
  double reduced; /* norm of what the elements are allowed */
} ad_error;
ad_error ad_measure_error(const double *dist, const double *ref, const double *sums, size_t numel,
                          ad_allowance allowance, double computing);

#endif
