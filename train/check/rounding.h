/* Bounds how far rounding may carry a reduced gradient from the exact sum of its addends, by precision policy and path.
 * core/docs/dtypes.md explains why. */
#ifndef CHECK_ROUNDING_H
#define CHECK_ROUNDING_H
#include "addend/recipe.h"

/* What an element may be off by: relative * (sum of its addends' absolute values) + absolute. */
typedef struct ad_allowance {
  double relative, absolute;
} ad_allowance;

/* The allowance under a complete precision policy. `result`: the dtype in which the reducer gives out the gradient;
 * `loss_scale`: the exponent that gradients carry. */
ad_allowance ad_rounding_allowance(const ad_recipe *recipe, const ad_param_spec *spec, ad_dtype result, int loss_scale);

/* How far a gradient is from its reference. Each element may be off by `allowance` of its entry in `sums` (its addends'
 * absolute values). The excess over this may have, over all elements, a norm of `computing`. */
typedef struct ad_error {
  double norm;  /* norm of the differences; NaN: a value is not finite */
  double share; /* the factor of both allowances under which the gradient would just pass; NaN: none, or a value is not
                   finite */
  double reduced; /* norm of what all elements are allowed */
} ad_error;
ad_error ad_measure_error(const double *dist, const double *ref, const double *sums, size_t numel,
                          ad_allowance allowance, double computing);

#endif
