/* Nests: the axes that shard one dimension, outermost first. */
#ifndef LAYOUT_NEST_H
#define LAYOUT_NEST_H
#include "addend/layout.h"
#include "base/internal.h"

AD_INTERNAL ad_axes ad_layout_axes_sharding(const ad_layout *layout, int dim); /* the axes that shard dimension `dim` */
/* Returns the axis that shards dimension `dim` at `depth` (0: outermost); AD_AXIS_COUNT if there is none. */
AD_INTERNAL ad_axis ad_layout_sharded_at(const ad_layout *layout, int dim, int depth);
/* Returns the number of the chunk that contains element e, if n elements are divided into `chunks` chunks and chunk i
 * is [floor(i*n/chunks), floor((i+1)*n/chunks)). */
AD_INTERNAL int64_t ad_cut_with(int64_t n, int64_t e, int64_t chunks);
/* Returns 1 if, in `rank`'s group over `axes`, each rank has the part of dimension 0 (full size n) that it would have
 * if one axis over the whole group sharded `rows` rows: ad_cut(rows, i, g) for member i of g. Usually finds this out
 * without examining each rank. */
int ad_layout_is_sharded_once(const ad_layout *layout, int64_t n, ad_axes axes, int64_t rank, int64_t rows);

#endif
