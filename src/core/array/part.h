/* Parts: which elements of a whole value a buffer stores, dimension by dimension, and copying the elements that two
 * buffers share. Every cut, gather and reordering of an array is such a copy. */
#ifndef ARRAY_PART_H
#define ARRAY_PART_H
#include "addend/layout.h"
#include "base/internal.h"

/* Each of the AD_AXIS_COUNT cuts of one dimension can add at most two pieces, an intersection of two parts joins them.
 */
enum { AD_PART_SPANS = 4 * AD_AXIS_COUNT };

/* Per dimension the spans of the whole value that are stored, ascending; the buffer is row-major over them. */
typedef struct ad_part {
  int ndim;
  int count[AD_DIMS_MAX];
  ad_span span[AD_DIMS_MAX][AD_PART_SPANS];
} ad_part;

AD_INTERNAL void ad_part_of(const ad_layout *layout, const ad_shape *shape, int64_t rank, ad_part *out);
AD_INTERNAL void ad_part_intersect(const ad_part *a, const ad_part *b, ad_part *out);
AD_INTERNAL size_t ad_part_numel(const ad_part *part);
/* Copies the elements of `region`, which both buffers store. The buffers do not overlap. */
AD_INTERNAL void ad_part_copy(void *dst, const ad_part *dst_part, const void *src, const ad_part *src_part,
                              const ad_part *region, size_t element_bytes);
/* Calls visit for every run of elements that are stored one after another and are neighbours in the whole value, in the
 * order in which they are stored: `count` elements, of the whole, flattened value those from `first` on. */
void ad_part_visit(const ad_part *part, const ad_shape *shape,
                   void (*visit)(void *context, int64_t first, int64_t count), void *context);
/* 1 if `region` is one run of the elements that `part` stores, starting at element `offset`; an empty region always is.
 */
int ad_part_is_run(const ad_part *part, const ad_part *region, size_t offset);

#endif
