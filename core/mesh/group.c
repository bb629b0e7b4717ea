/* Groups of a mesh: members are computed when they are needed, never stored. */
#include <inttypes.h>
#include "base/error.h"
#include "base/text.h"
#include "mesh/group.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

enum { SHOWN_MEMBERS_MAX = 16 };

ad_group ad_mesh_group(const ad_mesh *mesh, ad_axes axes, int64_t rank) {
  int64_t base = ad_mesh_number(mesh, rank);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis) && mesh->axis_size[axis] > 1)
      base -= ad_mesh_position(mesh, rank, (ad_axis)axis) * mesh->stride[axis];
  return (ad_group){mesh, axes & AD_AXES_ALL, ad_mesh_numbered(mesh, base)};
}

int64_t ad_mesh_ranks_over(const ad_mesh *mesh, ad_axes axes) {
  int64_t ranks = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (axes & AD_AXES(axis)) ranks *= mesh->axis_size[axis];
  return ranks;
}

int64_t ad_group_size(const ad_group *group) { return ad_mesh_ranks_over(group->mesh, group->axes); }

int64_t ad_group_rank(const ad_group *group, int64_t index) {
  if (!ad_has((size_t)index, (size_t)ad_group_size(group), __func__, "member")) return -1;
  const ad_mesh *mesh = group->mesh;
  int64_t number = ad_mesh_number(mesh, group->base);
  for (int i = AD_AXIS_COUNT - 1; i >= 0; i--) {
    ad_axis axis = mesh->order[i];
    if (!(group->axes & AD_AXES(axis))) continue;
    number += index % mesh->axis_size[axis] * mesh->stride[axis];
    index /= mesh->axis_size[axis];
  }
  return ad_mesh_numbered(mesh, number);
}

int64_t ad_group_index(const ad_group *group, int64_t rank) {
  const ad_mesh *mesh = group->mesh;
  if (!ad_mesh_has_rank(mesh, rank)) return -1;
  if (ad_mesh_group(mesh, group->axes, rank).base != group->base) return -1;
  int64_t index = 0;
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    ad_axis axis = mesh->order[i];
    if (group->axes & AD_AXES(axis)) index = index * mesh->axis_size[axis] + ad_mesh_position(mesh, rank, axis);
  }
  return index;
}

ad_group_shape ad_group_canonical(const ad_group *group) {
  const ad_mesh *mesh = group->mesh;
  ad_group_shape shape = {.base = group->base};
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    ad_axis axis = mesh->order[i];
    int64_t size = mesh->axis_size[axis], stride = mesh->stride[axis];
    if (!(group->axes & AD_AXES(axis)) || size == 1) continue;
    int last = shape.count - 1;
    if (last >= 0 && shape.stride[last] == size * stride) {
      shape.size[last] *= size;
      shape.stride[last] = stride;
    } else {
      shape.size[shape.count] = size;
      shape.stride[shape.count++] = stride;
    }
  }
  if (mesh->gap && shape.count) { /* a mesh over two pools has one axis, so the group is the whole mesh */
    shape.head = mesh->head;
    shape.gap = mesh->gap;
  }
  return shape;
}

const char *ad_group_print(const ad_group *group, char *buffer, size_t size) {
  char axes[128];
  ad_text text = ad_text_on(buffer, size);
  int64_t count = ad_group_size(group);
  ad_axes_print(group->axes, axes, sizeof axes);
  ad_text_add(&text, "%s%s{", axes, axes[0] ? " " : "");
  for (int64_t i = 0; i < count && i < SHOWN_MEMBERS_MAX; i++)
    ad_text_add(&text, "%s%" PRId64, i ? "," : "", ad_group_rank(group, i));
  ad_text_add(&text, count > SHOWN_MEMBERS_MAX ? ",...}" : "}");
  return buffer;
}
