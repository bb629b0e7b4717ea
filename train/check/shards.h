/* Whether the shards of a gradient, which hold different elements, were summed with each other. */
#ifndef CHECK_SHARDS_H
#define CHECK_SHARDS_H
#include "addend/layout.h"

/* The first axis along which `layout` shards an array of this shape and each shard of `dist` is the sum of all shards
 * of `ref`, element by element as they lie in memory, as far as each reaches; 0: there is none, or no memory to look.
 * `dist` and `ref` are full arrays, row-major; `largest` is the largest |ref|. */
ad_axes ad_shards_summed(const ad_layout *layout, const ad_shape *shape, const double *dist, const double *ref,
                         double largest);

#endif
