/* Boxes of a whole array, and the elements of it that a sample has. */
#ifndef DIFF_BOX_H
#define DIFF_BOX_H
#include "addend/layout.h"

/* As many dimensions as the whole has. */
typedef struct ad_box {
  int64_t first[AD_DIMS_MAX], count[AD_DIMS_MAX];
} ad_box;

ad_box ad_box_whole(const ad_shape *shape);
int64_t ad_box_numel(const ad_shape *shape, const ad_box *box);
int ad_box_equal(const ad_shape *shape, const ad_box *a, const ad_box *b);
int ad_box_contains(const ad_shape *shape, const ad_box *outer, const ad_box *inner);
int ad_box_has(const ad_shape *shape, const ad_box *box, int64_t flat);        /* the element of that flat index */
int64_t ad_box_offset(const ad_shape *shape, const ad_box *box, int64_t flat); /* of an element in it, row-major */

/* The flat index of element k of a sample of K elements of a whole of n: the rule of docs/dumps.md. */
uint64_t ad_sample_hash(const char *name);
int64_t ad_sample_element(uint64_t hash, int64_t k, int64_t of, int64_t n);
/* The sampled elements that lie in a box, by their numbers k, ascending. */
typedef struct ad_sampled {
  ad_box box;
  int64_t *numbers;
  size_t count;
} ad_sampled;
/* Whether the box's elements have flat indices without a gap; ad_sample_stretch: the numbers k of those in such a box.
 */
int ad_box_is_stretch(const ad_shape *shape, const ad_box *box);
ad_span ad_sample_stretch(uint64_t hash, const ad_shape *shape, int64_t sample, const ad_box *box);
/* How many of the K sampled elements lie in the box. */
int64_t ad_sample_count(const char *name, const ad_shape *shape, int64_t sample, const ad_box *box);

#endif
