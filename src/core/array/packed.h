/* Packed arrays: several values one after another in one flat buffer, each cut by rows where the layout is S(0). What
 * is particular to them is here; everything else treats them as the flat arrays that their shapes describe. */
#ifndef ARRAY_PACKED_H
#define ARRAY_PACKED_H
#include "addend/array.h"
#include "base/internal.h"

static inline int ad_array_is_packed(const ad_array *array) { return array->segment_count > 0; }

/* Where value number `index` lies in this rank's part: its first element and how many there are. */
AD_INTERNAL void ad_packed_stretch(const ad_array *array, int64_t rank, size_t index, size_t *start, size_t *numel);
/* A value of this shape as a segment: its rows are along dimension 0; a scalar is one row. */
ad_segment ad_segment_of(const ad_shape *shape);
/* Elements of `rank`'s part. */
AD_INTERNAL size_t ad_packed_local(const ad_array *array, int64_t rank);
/* Both are the same values one after another; also 1 where neither is packed. */
int ad_packed_alike(const ad_array *a, const ad_array *b);
/* AD_TYPE if the layout cuts it in another way than by rows, AD_INVALID if the shape is not that of the segments. */
ad_status ad_packed_check(const ad_array *array, const char *what, const char *site) AD_CHECKED;
/* Copies into out's part the elements that in's part has too. */
void ad_packed_copy_common(int64_t rank, const ad_array *in, const ad_array *out);
/* The segments of a reduce_scatter or all_gather: `whole` is the array of all members' parts, `part` the one of a
 * single member. What they point to is the array's or the comm's scratch memory. AD_INVALID where the parts are not
 * those of one cut over the group, as where several axes cut unevenly. */
ad_status ad_packed_segments(ad_comm *comm, const ad_array *whole, const ad_array *part, const char *site,
                             ad_collective *call) AD_CHECKED;

#endif
