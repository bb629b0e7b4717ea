/* Boxes (rectangular blocks) of a full array, and the elements of the array that a dump samples. */
#ifndef DIFF_BOX_H
#define DIFF_BOX_H
#include "addend/layout.h"

/* A block of a full array: for each of the array's dimensions, the block's first index and its number of indices. */
typedef struct ad_box {
  int64_t first[AD_DIMS_MAX], count[AD_DIMS_MAX];
} ad_box;

ad_box ad_box_full(const ad_shape *shape);
int64_t ad_box_numel(const ad_shape *shape, const ad_box *box);
int ad_box_equal(const ad_shape *shape, const ad_box *a, const ad_box *b);
int ad_box_contains(const ad_shape *shape, const ad_box *outer, const ad_box *inner);
/* Returns 1 if the box contains the element with flat (row-major) index `flat` of the full array. */
int ad_box_has(const ad_shape *shape, const ad_box *box, int64_t flat);
/* Returns the row-major offset, within the box, of the element with flat index `flat` of the full array. The element
 * must lie in the box. */
int64_t ad_box_offset(const ad_shape *shape, const ad_box *box, int64_t flat);

/* If a dump has K = `of` samples of an array of n elements, the flat indices are split into K equal spans with one
 * sample in each (rule: audit/docs/dumps.md). ad_sample_element returns the flat index of sample k. `hash` is
 * ad_sample_hash of the parameter's name. */
uint64_t ad_sample_hash(const char *name);
int64_t ad_sample_element(uint64_t hash, int64_t k, int64_t of, int64_t n);
/* The samples that lie in a box. */
typedef struct ad_sampled {
  ad_box box;
  int64_t *numbers; /* sample numbers k, ascending */
  size_t count;
} ad_sampled;
/* ad_box_is_stretch returns 1 if the box's elements have consecutive flat indices. For such a box, ad_sample_stretch
 * returns the range of the sample numbers k that lie in it. */
int ad_box_is_stretch(const ad_shape *shape, const ad_box *box);
ad_span ad_sample_stretch(uint64_t hash, const ad_shape *shape, int64_t sample, const ad_box *box);
/* Returns how many of the K = `sample` sampled elements lie in the box. */
int64_t ad_sample_count(const char *name, const ad_shape *shape, int64_t sample, const ad_box *box);

#endif
