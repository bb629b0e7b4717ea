/* Finds out whether the shards of a gradient, which have different elements, were summed with each other. */
#ifndef CHECK_SHARDS_H
#define CHECK_SHARDS_H
#include "addend/layout.h"

/* Returns the first axis along which `layout` shards an array of this shape and each shard of `dist` is the sum of all
 * shards of `ref`. Shards are summed element by element in memory order, up to the length of each. Returns 0 if there
 * is no such axis, or no memory. `dist` and `ref` are full arrays, row-major; `largest` is the largest |ref|. */
ad_axes ad_shards_summed(const ad_layout *layout, const ad_shape *shape, const double *dist, const double *ref,
                         double largest);

#endif
