/* Finds out whether ranks summed their shards of a gradient, which hold different elements, with each other: element k
 * of each rank's shard is then the sum of elements k of all the reference's shards that have so many. */
#include "check/shards.h"

#include <math.h>
#include "array/part.h"
#include "base/memory.h"

/* The number in the whole array of element k of this part, whose elements are row-major over its spans. */
static size_t index_of(const ad_part *part, const ad_shape *shape, size_t k) {
  size_t index = 0, stride = 1;
  for (int dim = part->ndim; dim-- > 0; stride *= (size_t)shape->dim[dim]) {
    size_t size = 0;
    for (int s = 0; s < part->count[dim]; s++) size += (size_t)part->span[dim][s].count;
    size_t left = k % size;
    int s = 0;
    while (left >= (size_t)part->span[dim][s].count) left -= (size_t)part->span[dim][s++].count;
    index += ((size_t)part->span[dim][s].first + left) * stride;
    k /= size;
  }
  return index;
}

typedef struct search {
  const ad_layout *layout;
  const ad_shape *shape;
  const double *dist, *ref;
  double tolerance;
  ad_part *parts; /* room for those of one group */
} search;

/* Whether the shards of this group's members hold the sum of the reference's. */
static int is_sum_in(const search *s, const ad_group *group) {
  size_t members = (size_t)ad_group_size(group), most = 0;
  for (size_t m = 0; m < members; m++) {
    ad_part_of(s->layout, s->shape, ad_group_rank(group, (int64_t)m), &s->parts[m]);
    size_t numel = ad_part_numel(&s->parts[m]);
    if (numel > most) most = numel;
  }
  for (size_t k = 0; k < most; k++) {
    double sum = 0;
    for (size_t m = 0; m < members; m++)
      if (k < ad_part_numel(&s->parts[m])) sum += s->ref[index_of(&s->parts[m], s->shape, k)];
    for (size_t m = 0; m < members; m++)
      if (k < ad_part_numel(&s->parts[m]) &&
          !(fabs(s->dist[index_of(&s->parts[m], s->shape, k)] - sum) <= s->tolerance))
        return 0;
  }
  return 1;
}

static int is_sum_along(const search *s, ad_axis axis) {
  const ad_mesh *mesh = s->layout->mesh;
  int64_t first = ad_mesh_first_rank(mesh);
  for (int64_t rank = first; rank < first + ad_mesh_size(mesh); rank++) {
    ad_group group = ad_mesh_group(mesh, AD_AXES(axis), rank);
    if (ad_group_rank(&group, 0) == rank && !is_sum_in(s, &group)) return 0;
  }
  return 1;
}

ad_axes ad_shards_summed(const ad_layout *layout, const ad_shape *shape, const double *dist, const double *ref,
                         double largest) {
  search s = {layout, shape, dist, ref, 1e-9 * largest, NULL};
  ad_axes found = 0, shards = ad_layout_cut_axes(layout) & ad_mesh_large(layout->mesh);
  if (!shards || ad_new((size_t)ad_mesh_size(layout->mesh), &s.parts)) return 0;
  for (int axis = 0; axis < AD_AXIS_COUNT && !found; axis++)
    if ((shards & AD_AXES(axis)) && is_sum_along(&s, (ad_axis)axis)) found = AD_AXES(axis);
  ad_release(s.parts);
  return found;
}
