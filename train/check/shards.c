/* Finds out whether ranks summed their shards of a gradient with each other, although shards have different elements.
 * Then element k of each rank's shard is the sum of element k of all the reference's shards that are long enough. */
#include "check/shards.h"

#include <math.h>
#include "array/part.h"
#include "base/memory.h"
#include "mesh/mesh.h"

typedef struct search {
  const ad_layout *layout;
  const ad_shape *shape;
  const double *dist, *ref;
  double tolerance;
  ad_part full;
  double *sum, *shard; /* memory for a full array each */
} search;

static ad_part full_of(const ad_shape *shape) {
  ad_part full = {.ndim = shape->ndim};
  for (int dim = 0; dim < shape->ndim; dim++) {
    full.count[dim] = 1;
    full.span[dim][0] = (ad_span){0, shape->dim[dim]};
  }
  return full;
}

/* Copies to s->shard the shard of these values that a rank stores; returns its number of elements. */
static size_t take_shard(const search *s, int64_t rank, const double *values) {
  ad_part part;
  ad_part_of(s->layout, s->shape, rank, &part);
  ad_part_copy(s->shard, &part, values, &s->full, &part, sizeof *values);
  return ad_part_numel(&part);
}

/* Returns 1 if each shard of `dist` in this group is the sum of the reference's shards. */
static int is_sum_in(const search *s, const ad_group *group) {
  for (size_t k = 0; k < ad_part_numel(&s->full); k++) s->sum[k] = 0;
  for (int64_t m = 0; m < ad_group_size(group); m++) {
    size_t numel = take_shard(s, ad_group_rank(group, m), s->ref);
    for (size_t k = 0; k < numel; k++) s->sum[k] += s->shard[k];
  }
  for (int64_t m = 0; m < ad_group_size(group); m++) {
    size_t numel = take_shard(s, ad_group_rank(group, m), s->dist);
    for (size_t k = 0; k < numel; k++)
      if (!(fabs(s->shard[k] - s->sum[k]) <= s->tolerance)) return 0;
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
  search s = {layout, shape, dist, ref, 1e-9 * largest, full_of(shape), NULL, NULL};
  ad_axes found = 0, shards = ad_layout_sharded_axes(layout) & ad_mesh_large(layout->mesh);
  size_t numel = ad_part_numel(&s.full);
  if (!shards || ad_new(2 * numel, &s.sum)) return 0;
  s.shard = s.sum + numel;
  for (int axis = 0; axis < AD_AXIS_COUNT && !found; axis++)
    if ((shards & AD_AXES(axis)) && is_sum_along(&s, (ad_axis)axis)) found = AD_AXES(axis);
  ad_release(s.sum);
  return found;
}
