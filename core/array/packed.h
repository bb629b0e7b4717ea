/* Packed arrays: several values one after another in one flat buffer; each value is sharded by rows on the axes where
 * the layout is S(0). Other files treat packed arrays as flat arrays of their shape. */
#ifndef ARRAY_PACKED_H
#define ARRAY_PACKED_H
#include "addend/array.h"
#include "base/internal.h"

static inline int ad_array_is_packed(const ad_array *array) { return array->segment_count > 0; }

/* The place of value number `index` in this rank's part: its first element and its number of elements. */
AD_INTERNAL void ad_packed_stretch(const ad_array *array, int64_t rank, size_t index, size_t *start, size_t *numel);
/* Turns a value of this shape into a segment: rows lie along dimension 0; a scalar is one row. */
ad_segment ad_segment_of(const ad_shape *shape);
/* The number of elements in `rank`'s part. */
AD_INTERNAL size_t ad_packed_local(const ad_array *array, int64_t rank);
/* Returns 1 if both arrays pack values with the same rows in the same order, or neither is packed. */
int ad_packed_identical(const ad_array *a, const ad_array *b);
/* AD_TYPE if the layout shards the array otherwise than by rows; AD_INVALID if its shape is not that of its
 * segments. */
ad_status ad_packed_check(const ad_array *array, const char *what, const char *site) AD_CHECKED;
/* Copies the elements that are both in in's part and in out's part. */
void ad_packed_copy_common(int64_t rank, const ad_array *in, const ad_array *out);
/* Fills the segments of a reduce_scatter or all_gather. `full` is the array with all members' parts, `part` the array
 * with one member's part. The segments point into the array or into the comm's scratch memory. AD_INVALID if the parts
 * are not a single sharding over the group, for example if several axes shard unevenly. */
ad_status ad_packed_segments(ad_comm *comm, const ad_array *full, const ad_array *part, const char *site,
                             ad_collective *call) AD_CHECKED;

#endif
