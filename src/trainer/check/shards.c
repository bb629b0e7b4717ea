/* Finds out whether ranks summed their shards of a gradient, which hold different elements, with each other: each shard
 * is then the sum of all of the reference's shards. */
#include "check/shards.h"

#include <math.h>
#include "layout/type.h"

/* How an axis cuts a dimension: element `index` of the whole is at ((outer * shards + shard) * inner) + rest. */
typedef struct cut {
  int64_t outer, shards, inner;
} cut;

static int64_t product(const ad_shape *shape, int from, int to) {
  int64_t numel = 1;
  for (int i = from; i < to; i++) numel *= shape->dim[i];
  return numel;
}

/* Returns 0 if the shards are not all of one size. */
static int find_cut(const ad_layout *layout, ad_axis axis, const ad_shape *shape, cut *out) {
  int dim = ad_type_dim(layout->type[axis]);
  int64_t slower = 1, all = 1;
  for (int other = 0; other < AD_AXIS_COUNT; other++) {
    int64_t size = ad_mesh_axis_size(layout->mesh, (ad_axis)other);
    if (ad_type_dim(layout->type[other]) != dim) continue;
    all *= size;
    if (layout->depth[other] < layout->depth[axis]) slower *= size;
  }
  *out = (cut){product(shape, 0, dim) * slower, ad_mesh_axis_size(layout->mesh, axis), 0};
  if (shape->dim[dim] % all) return 0;
  out->inner = product(shape, dim, shape->ndim) / slower / out->shards;
  return 1;
}

/* Whether each shard of `dist` is the sum of all shards of `ref`, to 1e-9 of the largest element. */
static int is_sum(const cut *c, const double *dist, const double *ref, double largest) {
  for (int64_t o = 0; o < c->outer; o++)
    for (int64_t i = 0; i < c->inner; i++) {
      const int64_t first = o * c->shards * c->inner + i;
      double sum = 0;
      for (int64_t s = 0; s < c->shards; s++) sum += ref[first + s * c->inner];
      for (int64_t s = 0; s < c->shards; s++)
        if (!(fabs(dist[first + s * c->inner] - sum) <= 1e-9 * largest)) return 0;
    }
  return 1;
}

ad_axes ad_shards_summed(const ad_layout *layout, const ad_shape *shape, const double *dist, const double *ref,
                         double largest) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    cut c;
    if (!ad_type_is_cut(layout->type[axis]) || ad_type_is_zigzag(layout->type[axis]) ||
        ad_mesh_axis_size(layout->mesh, (ad_axis)axis) < 2)
      continue;
    if (find_cut(layout, (ad_axis)axis, shape, &c) && is_sum(&c, dist, ref, largest)) return AD_AXES(axis);
  }
  return 0;
}
