/* Makes and compares layouts, computes duals, and sets types axis by axis. text.c reads and prints layouts. */
#include <string.h>
#include "layout/nest.h"
#include "layout/type.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

ad_layout ad_layout_all(const ad_mesh *mesh, ad_type type) {
  ad_layout layout = {.mesh = mesh};
  memset(layout.type, type, sizeof layout.type);
  return layout;
}

int ad_layout_equal(const ad_layout *a, const ad_layout *b) {
  return ad_mesh_equal(a->mesh, b->mesh) && memcmp(a->type, b->type, sizeof a->type) == 0 &&
         memcmp(a->depth, b->depth, sizeof a->depth) == 0;
}

ad_layout ad_layout_dual(const ad_layout *layout) {
  ad_layout dual = *layout;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) dual.type[axis] = ad_type_dual(layout->type[axis]);
  return dual;
}

ad_axes ad_layout_axes_of(const ad_layout *layout, ad_type type) {
  ad_axes axes = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (layout->type[axis] == type) axes |= AD_AXES(axis);
  return axes;
}

ad_axes ad_layout_axes_sharding(const ad_layout *layout, int dim) {
  return ad_layout_axes_of(layout, AD_S(dim)) | ad_layout_axes_of(layout, AD_S_ZIGZAG(dim));
}

ad_axes ad_layout_sharded_axes(const ad_layout *layout) {
  ad_axes axes = 0;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (layout->type[axis] > AD_P && ad_type_is_sharded(layout->type[axis])) axes |= AD_AXES(axis);
  return axes;
}

ad_axes ad_layout_same_axes(const ad_layout *layout) {
  return ad_layout_axes_of(layout, AD_R) | ad_layout_axes_of(layout, AD_I);
}

/* Removes an axis from the axes that shard its dimension. The axes inside it then have a depth of one less. */
static void leave_nest(ad_layout *layout, ad_axis axis) {
  int dim = ad_type_dim(layout->type[axis]);
  ad_axes nest = dim < 0 ? 0 : ad_layout_axes_sharding(layout, dim);
  for (int other = 0; other < AD_AXIS_COUNT; other++)
    if ((nest & AD_AXES(other)) && layout->depth[other] > layout->depth[axis]) layout->depth[other]--;
  layout->type[axis] = AD_R;
  layout->depth[axis] = 0;
}

void ad_layout_set(ad_layout *layout, ad_axes axes, ad_type type) {
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    ad_axis axis = layout->mesh->order[i];
    if (!(axes & AD_AXES(axis)) || layout->type[axis] == type) continue;
    leave_nest(layout, axis);
    if (ad_type_is_sharded(type))
      layout->depth[axis] = (uint8_t)__builtin_popcount(ad_layout_axes_sharding(layout, ad_type_dim(type)));
    layout->type[axis] = type;
  }
}

ad_axis ad_layout_sharded_at(const ad_layout *layout, int dim, int depth) {
  ad_axes nest = ad_layout_axes_sharding(layout, dim);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if ((nest & AD_AXES(axis)) && layout->depth[axis] == depth) return (ad_axis)axis;
  return AD_AXIS_COUNT;
}
