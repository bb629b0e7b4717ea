/* Whether shards of a gradient, which are of different elements, were summed with each other. */
#ifndef CHECK_SHARDS_H
#define CHECK_SHARDS_H
#include "addend/layout.h"

/* The first axis along which `layout` cuts an array of this shape and every shard of `dist` is the sum of all of
 * `ref`'s; 0: none, or shards are not of one size. Both whole, row-major; `largest`: of |ref|. */
ad_axes ad_shards_summed(const ad_layout *layout, const ad_shape *shape, const double *dist, const double *ref,
                         double largest);

#endif
