/* Finds the mesh that a dump names: one mesh for all views (factorisations of the same ranks) of a reducer. */
#include <stdio.h>
#include <string.h>
#include "base/error.h"
#include "reduce/dump.h"
#include "mesh/mesh.h"

static const ad_mesh *mesh_of(const ad_reducer *reducer, size_t param) { return reducer->params[param].layout.mesh; }

/* The strides, in ranks, of the axes of all views, in ascending order, and last the number of ranks. Each stride
 * divides the next one. */
typedef struct marks {
  int64_t at[AD_DUMP_FACTORS + 1];
  int count;
} marks;

/* Adds a stride. Returns 0 if no single mesh can have axes of this stride and of the strides added before. */
static int add_mark(marks *m, int64_t stride) {
  int i = 0;
  while (i < m->count && m->at[i] < stride) i++;
  if (i < m->count && m->at[i] == stride) return 1;
  if (m->count > AD_DUMP_FACTORS || (i && stride % m->at[i - 1]) || (i < m->count && m->at[i] % stride)) return 0;
  memmove(&m->at[i + 1], &m->at[i], (size_t)(m->count - i) * sizeof *m->at);
  m->at[i] = stride;
  m->count++;
  return 1;
}

static int add_mesh(marks *m, const ad_mesh *mesh) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_mesh_axis_size(mesh, (ad_axis)axis) > 1 && !add_mark(m, ad_mesh_stride(mesh, (ad_axis)axis))) return 0;
  }
  return add_mark(m, ad_mesh_size(mesh));
}

static int is_in(const ad_mesh *mesh, ad_axis axis, const ad_dump_factor *factor) {
  int64_t stride = ad_mesh_stride(mesh, axis), end = stride * ad_mesh_axis_size(mesh, axis);
  return stride <= factor->stride && factor->stride * factor->size <= end;
}

ad_type ad_dump_type(const ad_layout *layout, const ad_dump_factor *factor) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (is_in(layout->mesh, (ad_axis)axis, factor)) return layout->type[axis];
  return AD_R;
}

static int is_taken(const ad_dump_mesh *mesh, const char *name) {
  for (int i = 0; i < mesh->count; i++)
    if (!strcmp(mesh->factor[i].name, name)) return 1;
  return 0;
}

/* Returns the name of an axis that has exactly the ranks of this factor, from the first view that has such an axis;
 * NULL if there is none. */
static const char *name_in_views(const ad_reducer *reducer, const ad_dump_mesh *found, const ad_dump_factor *factor) {
  for (size_t i = 0; i < reducer->param_count; i++) {
    for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
      const char *name = ad_axis_name((ad_axis)axis);
      int same = ad_mesh_axis_size(mesh_of(reducer, i), (ad_axis)axis) == factor->size;
      if (same && is_in(mesh_of(reducer, i), (ad_axis)axis, factor) && !is_taken(found, name)) return name;
    }
  }
  return NULL;
}

static void add_factor(const ad_reducer *reducer, int64_t stride, int64_t size, ad_dump_mesh *out) {
  ad_dump_factor factor = {.stride = stride, .size = size};
  const char *name = name_in_views(reducer, out, &factor);
  if (name)
    snprintf(factor.name, sizeof factor.name, "%s", name);
  else
    snprintf(factor.name, sizeof factor.name, "axis_%lld", (long long)stride);
  out->factor[out->count++] = factor;
}

static ad_status refuse_meshes(const ad_reducer *reducer, size_t i) {
  return ad_fail(AD_INVALID,
                 "a dump can have only one mesh, but `%s` lies on \"%s\" and `%s` on \"%s\", and no single mesh has "
                 "the axes of both",
                 reducer->params[0].name, ad_mesh_text(mesh_of(reducer, 0)), reducer->params[i].name,
                 ad_mesh_text(mesh_of(reducer, i)));
}

ad_status ad_dump_mesh_find(const ad_reducer *reducer, ad_dump_mesh *out) {
  marks m = {.at = {1}, .count = 1};
  *out = (ad_dump_mesh){0};
  for (size_t i = 0; i < reducer->param_count; i++) {
    if (!ad_mesh_same_ranks(mesh_of(reducer, 0), mesh_of(reducer, i)) || !add_mesh(&m, mesh_of(reducer, i)))
      return refuse_meshes(reducer, i);
  }
  for (int i = m.count - 1; i > 0; i--) add_factor(reducer, m.at[i - 1], m.at[i] / m.at[i - 1], out);
  return AD_OK;
}
