/* Law 4: finds the reductions that lead from a gradient's layout to the storage layout. Reductions are derived, never
 * configured. */
#include <string.h>
#include "base/error.h"
#include "layout/nest.h"
#include "layout/type.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

/* Returns the move that changes a gradient's type `from` to `to`; AD_MOVE_COUNT if there is none. */
static ad_move move_between(ad_type from, ad_type to) {
  int final = to == AD_R || to == AD_I;
  if (from == AD_P && final) return AD_MOVE_ALL_REDUCE;
  if (from == AD_P && ad_type_is_sharded(to)) return AD_MOVE_REDUCE_SCATTER;
  if ((from == AD_R || from == AD_I) && ad_type_is_sharded(to)) return AD_MOVE_CONVERT;
  return AD_MOVE_COUNT;
}

/* Returns AD_TYPE if on some axis no move leads from the gradient's type to the storage's type. */
static ad_status check_axes(const ad_layout *gradient, const ad_layout *storage) {
  char from[AD_TYPE_TEXT_MAX], to[AD_TYPE_TEXT_MAX];
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    ad_axis axis = gradient->mesh->order[i];
    ad_type g = gradient->type[axis], s = storage->type[axis];
    if (g == s || move_between(g, s) != AD_MOVE_COUNT) continue;
    return ad_fail(AD_TYPE,
                   "a gradient that is %s on `%s` cannot be reduced to storage of type %s. A P gradient can be stored "
                   "as R, I or S, an R or I gradient with its own type or as S, any other gradient only with its own "
                   "type; change one of the two types",
                   ad_type_print(g, from, sizeof from), ad_axis_name(axis), ad_type_print(s, to, sizeof to));
  }
  return AD_OK;
}

/* A path under construction, and the layout to which its steps lead. */
typedef struct path {
  int count;
  ad_path_step step[AD_AXIS_COUNT];
  ad_layout reached;
} path;

static int position_in_mesh(const ad_mesh *mesh, ad_axis axis) {
  int i = 0;
  while (mesh->order[i] != axis) i++;
  return i;
}

/* Returns 1 if an axis can be added to the path's last step, else 0. The step must make the same move between the same
 * types, and its axes must come before this axis in mesh order, because a step over several axes shards in mesh
 * order. */
static int joins(const path *p, ad_move move, ad_type from, ad_type to, ad_axis axis) {
  const ad_path_step *last = p->count ? &p->step[p->count - 1] : NULL;
  if (!last || last->move != move || last->from != from || last->to != to) return 0;
  for (int other = 0; other < AD_AXIS_COUNT; other++)
    if ((last->axes & AD_AXES(other)) &&
        position_in_mesh(p->reached.mesh, (ad_axis)other) > position_in_mesh(p->reached.mesh, axis))
      return 0;
  return 1;
}

/* Adds the step that changes one axis to its final type. An axis that the mesh does not name has one rank, so its type
 * changes without a step. */
static void take_step(path *p, ad_axis axis, ad_type to) {
  ad_type from = p->reached.type[axis];
  ad_move move = move_between(from, to);
  int named = (ad_mesh_named(p->reached.mesh) & AD_AXES(axis)) != 0;
  if (from == to) return;
  if (named && !joins(p, move, from, to, axis)) p->step[p->count++] = (ad_path_step){move, 0, from, to};
  if (named) p->step[p->count - 1].axes |= AD_AXES(axis);
  ad_layout_set(&p->reached, AD_AXES(axis), to);
}

/* Finds the path. Reduce-scatters come first, outermost axis first, so that later steps reduce smaller parts. */
static path find_path(const ad_layout *gradient, const ad_layout *storage) {
  path p = {.reached = *gradient};
  for (int dim = 0; dim < AD_DIMS_MAX; dim++)
    for (int depth = 0; depth < AD_AXIS_COUNT; depth++) {
      ad_axis axis = ad_layout_sharded_at(storage, dim, depth);
      if (axis != AD_AXIS_COUNT) take_step(&p, axis, storage->type[axis]);
    }
  for (int final = AD_R; final <= AD_I; final++)
    for (int i = 0; i < AD_AXIS_COUNT; i++) {
      ad_axis axis = storage->mesh->order[i];
      if (storage->type[axis] == final) take_step(&p, axis, (ad_type) final);
    }
  return p;
}

ad_status ad_layout_path(const ad_layout *gradient, const ad_layout *storage, ad_path_step steps[AD_AXIS_COUNT],
                         int *count) {
  AD_NEED(gradient, storage, steps, count);
  AD_NEED(gradient->mesh, storage->mesh);
  char reached[256], wanted[256];
  if (!ad_mesh_equal(gradient->mesh, storage->mesh))
    return ad_fail(AD_TYPE,
                   "the gradient is on mesh \"%s\", but the storage is on mesh \"%s\"; put the gradient and the "
                   "storage on the same mesh",
                   ad_mesh_text(gradient->mesh), ad_mesh_text(storage->mesh));
  AD_TRY(check_axes(gradient, storage));
  path p = find_path(gradient, storage);
  if (!ad_layout_equal(&p.reached, storage))
    return ad_fail(AD_TYPE,
                   "the reductions of the gradient give the layout \"%s\", but the storage has the layout \"%s\"; in "
                   "the layout of the storage, nest the axes that already shard the gradient outside the axes over "
                   "which reductions shard the gradient",
                   ad_layout_print(&p.reached, reached, sizeof reached),
                   ad_layout_print(storage, wanted, sizeof wanted));
  memcpy(steps, p.step, (size_t)p.count * sizeof *steps);
  *count = p.count;
  return AD_OK;
}
