/* Limits how far rounding may move a reduced gradient from the exact sum of its addends; depends on the precision
 * policy and on the reductions that the gradient passes. core/docs/dtypes.md explains why. */
#ifndef CHECK_ROUNDING_H
#define CHECK_ROUNDING_H
#include "addend/recipe.h"
#include "recipe/sharding.h"

/* How far an element may be off: relative * (sum of its addends' absolute values) + absolute. */
typedef struct ad_allowance {
  double relative, absolute;
} ad_allowance;

/* Returns the allowance under a complete precision policy. `sharding`: how the recipe shards the parameter. `result` is the dtype of the gradient that the reducer
 * returns; `loss_scale` the exponent that gradients carry. */
ad_allowance ad_rounding_allowance(const ad_recipe *recipe, const ad_recipe_sharding *sharding,
                                   const ad_param_spec *spec, ad_dtype result, int loss_scale);

/* How far a gradient is from its reference. Each element may be off by `allowance`, applied to its entry in `sums` (the
 * sum of its addends' absolute values). What exceeds this may have, over all elements, a norm of `computing`. */
typedef struct ad_error {
  double norm; /* norm of the differences; NaN: a value is not finite */
  /* the factor of both allowances with which the gradient would just pass; NaN: there is none, or a value is not
   * finite */
  double share;
  double reduced; /* norm, over all elements, of what `allowance` allows */
} ad_error;
ad_error ad_measure_error(const double *dist, const double *ref, const double *sums, size_t numel,
                          ad_allowance allowance, double computing);

#endif
