/* Boxes (rectangular blocks) of a whole array, and the elements of the array that a dump samples. */
#ifndef DIFF_BOX_H
#define DIFF_BOX_H
#include "addend/layout.h"

/* A block of a whole array: in each dimension the first index and how many follow. It has as many dimensions as the
 * array. */
typedef struct ad_box {
  int64_t first[AD_DIMS_MAX], count[AD_DIMS_MAX];
} ad_box;

ad_box ad_box_full(const ad_shape *shape);
int64_t ad_box_numel(const ad_shape *shape, const ad_box *box);
int ad_box_equal(const ad_shape *shape, const ad_box *a, const ad_box *b);
int ad_box_contains(const ad_shape *shape, const ad_box *outer, const ad_box *inner);
/* Whether the box contains the element with flat (row-major) index `flat` of the whole. */
int ad_box_has(const ad_shape *shape, const ad_box *box, int64_t flat);
/* The row-major offset within the box of the whole's element `flat`, which must lie in the box. */
int64_t ad_box_offset(const ad_shape *shape, const ad_box *box, int64_t flat);

/* A dump with K = `of` samples of an array of n elements has one element in each of K equal spans of flat indices.
 * ad_sample_element returns the flat index of sample k; `hash` is ad_sample_hash of the parameter's name. audit/docs/dumps.md
 * has the rule. */
uint64_t ad_sample_hash(const char *name);
int64_t ad_sample_element(uint64_t hash, int64_t k, int64_t of, int64_t n);
/* The samples that lie in a box. */
typedef struct ad_sampled {
  ad_box box;
  int64_t *numbers; /* sample numbers k, ascending */
  size_t count;
} ad_sampled;
/* ad_box_is_stretch: whether the box's elements have consecutive flat indices. ad_sample_stretch: the sample numbers k
 * that lie in such a box. */
int ad_box_is_stretch(const ad_shape *shape, const ad_box *box);
ad_span ad_sample_stretch(uint64_t hash, const ad_shape *shape, int64_t sample, const ad_box *box);
/* How many of the K = `sample` sampled elements lie in the box. */
int64_t ad_sample_count(const char *name, const ad_shape *shape, int64_t sample, const ad_box *box);

#endif
