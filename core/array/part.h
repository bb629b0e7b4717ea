/* Parts: which elements of a full value a buffer stores, dimension by dimension. ad_part_copy copies the elements that
 * two buffers both store: every scatter, gather and reordering of an array is such a copy. */
#ifndef ARRAY_PART_H
#define ARRAY_PART_H
#include "addend/layout.h"
#include "base/internal.h"

/* The most spans of one dimension: each of at most AD_AXIS_COUNT sharded axes adds at most two spans, and an
 * intersection of two parts has at most as many spans as the two parts together. */
enum { AD_PART_SPANS = 4 * AD_AXIS_COUNT };

/* A part: for each dimension, the spans of indices that a buffer stores, in ascending order. The buffer holds the
 * elements at these indices, row-major. */
typedef struct ad_part {
  int ndim;
  int count[AD_DIMS_MAX];
  ad_span span[AD_DIMS_MAX][AD_PART_SPANS];
} ad_part;

/* Finds the part that `rank` stores of a value with this layout and full shape. */
AD_INTERNAL void ad_part_of(const ad_layout *layout, const ad_shape *shape, int64_t rank, ad_part *out);
AD_INTERNAL void ad_part_intersect(const ad_part *a, const ad_part *b, ad_part *out);
AD_INTERNAL size_t ad_part_numel(const ad_part *part);
/* Copies the elements of `region`, which both parts must contain. The buffers must not overlap. */
AD_INTERNAL void ad_part_copy(void *dst, const ad_part *dst_part, const void *src, const ad_part *src_part,
                              const ad_part *region, size_t element_bytes);
/* Calls `visit` for every run of elements, in the order of the buffer. A run is contiguous both in the buffer and in
 * the flattened full value: `count` elements, from element number `first` of the full value on. */
AD_INTERNAL void ad_part_visit(const ad_part *part, const ad_shape *shape,
                               void (*visit)(void *context, int64_t first, int64_t count), void *context);
/* Returns 1 if `part` stores the elements of `region` contiguously, beginning at element `offset` of its buffer, or if
 * `region` is empty; else 0. */
int ad_part_is_run(const ad_part *part, const ad_part *region, size_t offset);

#endif
