/* Packed arrays: several values one after another in one flat buffer. Each value is sharded by rows on the axes on
 * which the layout is S(0). Other files treat a packed array as one flat array of its shape. */
#ifndef ARRAY_PACKED_H
#define ARRAY_PACKED_H
#include "addend/array.h"
#include "base/internal.h"

static inline int ad_array_is_packed(const ad_array *array) { return array->segment_count > 0; }

/* Finds value number `index` in `rank`'s part: *start is its first element there, *numel its number of elements. */
AD_INTERNAL void ad_packed_stretch(const ad_array *array, int64_t rank, size_t index, size_t *start, size_t *numel);
/* Returns the segment for a value of this shape: rows lie along dimension 0; a scalar is one row. */
ad_segment ad_segment_of(const ad_shape *shape);
/* Returns the number of elements in `rank`'s part. */
AD_INTERNAL size_t ad_packed_local(const ad_array *array, int64_t rank);
/* Returns 1 if both arrays pack values with the same rows in the same order, or if neither is packed; else 0. */
int ad_packed_identical(const ad_array *a, const ad_array *b);
/* Returns AD_TYPE if the layout shards the packed array on another dimension than 0; AD_INVALID if the array's shape is
 * not the shape of its segments. */
ad_status ad_packed_check(const ad_array *array, const char *what, const char *site) AD_CHECKED;
/* Copies the elements that `rank`'s part of `in` and its part of `out` both have. */
void ad_packed_copy_common(int64_t rank, const ad_array *in, const ad_array *out);
/* Sets call->segments for a reduce_scatter or all_gather. `full` is the array with all members' parts, `part` the array
 * with one member's part. The segments lie in the array or in the comm's scratch memory. AD_INVALID unless the parts
 * are those of one sharding over all members; several axes that shard unevenly give other parts. */
ad_status ad_packed_segments(ad_comm *comm, const ad_array *full, const ad_array *part, const char *site,
                             ad_collective *call) AD_CHECKED;

#endif
