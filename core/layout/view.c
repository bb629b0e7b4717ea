/* Changes the view: describes the same value on another factorisation of its ranks. Because no bytes move, this is
 * possible for few layouts only. */
#include "base/error.h"
#include "layout/sentences.h"
#include "layout/transition.h"
#include "layout/type.h"
#include "mesh/object.h"
#include "mesh/mesh.h"

/* Returns the type that all axes of a set should get if they need one type, for messages. Transitions without loss lead
 * to it from every type on these axes. */
static ad_type common_type(const ad_layout *layout, ad_axes axes) {
  int seen[AD_P + 1] = {0};
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type type = layout->type[axis];
    if (axes & AD_AXES(axis)) seen[ad_type_is_sharded(type) ? AD_V : type] = 1;
  }
  if (seen[AD_P]) return AD_P;
  if (seen[AD_V]) return AD_V;
  return seen[AD_I] && !seen[AD_R] ? AD_I : AD_R;
}

/* Returns the axis to name in the message: an axis whose type is not the common type; of several axes that shard one
 * dimension the innermost, because only the innermost can be gathered. AD_AXIS_COUNT if all axes have the common
 * type. */
static ad_axis find_other(const ad_layout *layout, ad_axes axes, ad_type common) {
  int found = AD_AXIS_COUNT;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!(axes & AD_AXES(axis)) || layout->type[axis] == common) continue;
    if (found == AD_AXIS_COUNT || layout->depth[axis] > layout->depth[found]) found = axis;
  }
  return (ad_axis)found;
}

/* *out: the type that the layout has on all of `axes`, which must be R, I, V or P; AD_TYPE if the axes have different
 * types or are sharded. `seen_as` has the names of the view's axes that replace `axes`, for the message. */
static ad_status one_type(const ad_layout *layout, const char *site, ad_axes axes, const char *seen_as, ad_type *out) {
  ad_type common = common_type(layout, axes);
  ad_axis axis = find_other(layout, axes, common);
  char set[128], type[AD_TYPE_TEXT_MAX], target[AD_TYPE_TEXT_MAX], repair[AD_WAY_TEXT_MAX];
  if (axis != AD_AXIS_COUNT) {
    ad_way way = ad_way_find(layout->type[axis], common);
    return ad_fail(AD_TYPE,
                   "%s: in the change of view, `%s` becomes `%s` and needs one type among R, I, V, P, but the value is "
                   "%s on `%s`" AD_MAY_REPAIR "%s on that axis, so that the value is %s on all these axes",
                   site, ad_axes_print(axes, set, sizeof set), seen_as,
                   ad_type_print(layout->type[axis], type, sizeof type), ad_axis_name(axis),
                   ad_way_print(&way, repair, sizeof repair), ad_type_print(common, target, sizeof target));
  }
  *out = common;
  return AD_OK;
}

/* Sets the types of the view's axes that have the same groups as axes of the mesh. */
static ad_status view_sets(const ad_layout *layout, const char *site, ad_layout *seen, ad_axes *known) {
  ad_axes from[AD_AXIS_COUNT], to[AD_AXIS_COUNT];
  int count = ad_mesh_common_sets(layout->mesh, seen->mesh, from, to);
  for (int i = 0; i < count; i++) {
    char seen_as[128];
    ad_type type = AD_R;
    AD_TRY(one_type(layout, site, from[i], ad_axes_print(to[i], seen_as, sizeof seen_as), &type));
    ad_layout_set(seen, to[i], type);
    *known |= to[i];
  }
  return AD_OK;
}

/* Lists the named axes of size 1 that have this stride, fastest first. ad_mesh_common_sets leaves out such axes. An
 * axis of size 1 of the view corresponds to the mesh's axis of size 1 with the same stride; if several have this
 * stride, they correspond in order, fastest first. */
static int thin_axes(const ad_mesh *mesh, int64_t stride, ad_axis axes[AD_AXIS_COUNT]) {
  int count = 0;
  for (int i = mesh->named_count - 1; i >= 0; i--) {
    ad_axis axis = mesh->order[i];
    if (mesh->axis_size[axis] == 1 && mesh->stride[axis] == stride) axes[count++] = axis;
  }
  return count;
}

/* Sets the types of the view's axes of size 1 at this stride. */
static ad_status view_thin_axes(const ad_layout *layout, const char *site, int64_t stride, ad_layout *seen,
                                ad_axes *known) {
  ad_axis here[AD_AXIS_COUNT], there[AD_AXIS_COUNT];
  int here_count = thin_axes(layout->mesh, stride, here), there_count = thin_axes(seen->mesh, stride, there);
  for (int i = 0; i < here_count; i++) {
    ad_type type = AD_R;
    const char *seen_as = i < there_count ? ad_axis_name(there[i]) : "nothing";
    AD_TRY(one_type(layout, site, AD_AXES(here[i]), seen_as, &type));
    if (i >= there_count) continue;
    ad_layout_set(seen, AD_AXES(there[i]), type);
    *known |= AD_AXES(there[i]);
  }
  return AD_OK;
}

/* Gives each axis of the view that has no counterpart in the mesh the type of its slower neighbour; if no axis is
 * slower, the type of the nearest faster axis that has a counterpart. */
static void fill_unknown(ad_layout *seen, ad_axes known) {
  const ad_mesh *view = seen->mesh;
  ad_type type = AD_R;
  for (int i = view->named_count - 1; i >= 0; i--)
    if (known & AD_AXES(view->order[i])) type = seen->type[view->order[i]];
  for (int i = 0; i < view->named_count; i++) {
    ad_axis axis = view->order[i];
    if (!(known & AD_AXES(axis))) ad_layout_set(seen, AD_AXES(axis), type);
    type = seen->type[axis];
  }
}

/* Sets the types of axes that neither the mesh nor the view names. They have one rank in both, and keep their types. */
static ad_status keep_unnamed(const ad_layout *layout, const char *site, ad_layout *seen) {
  ad_axes named = ad_mesh_named(layout->mesh) | ad_mesh_named(seen->mesh);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type type = AD_R;
    if (named & AD_AXES(axis)) continue;
    AD_TRY(one_type(layout, site, AD_AXES(axis), ad_axis_name((ad_axis)axis), &type));
    ad_layout_set(seen, AD_AXES(axis), type);
  }
  return AD_OK;
}

/* Sets the types of all axes of the view. */
static ad_status view_all(const ad_layout *layout, const char *site, ad_layout *seen) {
  ad_axes known = 0;
  AD_TRY(view_sets(layout, site, seen, &known));
  AD_TRY(keep_unnamed(layout, site, seen));
  for (int i = 0; i < AD_AXIS_COUNT; i++) {
    /* only strides of the mesh: an axis of the view with another stride has no counterpart */
    const ad_mesh *mesh = layout->mesh;
    AD_TRY(view_thin_axes(layout, site, mesh->stride[mesh->order[i]], seen, &known));
  }
  fill_unknown(seen, known);
  return AD_OK;
}

ad_status ad_layout_view_at(const ad_layout *layout, const ad_mesh *view, ad_layout *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(layout, view, out);
  AD_NEED(layout->mesh);
  if (!ad_mesh_same_ranks(layout->mesh, view))
    return ad_fail(AD_INVALID,
                   "%s: a view must have the same ranks as its mesh, but mesh \"%s\" has ranks %lld to %lld and the "
                   "view \"%s\" has ranks %lld to %lld; use a view of the mesh's own ranks",
                   site, ad_mesh_text(layout->mesh), (long long)ad_mesh_first_rank(layout->mesh),
                   (long long)ad_mesh_last_rank(layout->mesh), ad_mesh_text(view), (long long)ad_mesh_first_rank(view),
                   (long long)ad_mesh_last_rank(view));
  ad_layout seen = ad_layout_all(view, AD_R);
  AD_TRY(view_all(layout, site, &seen));
  *out = seen;
  return AD_OK;
}
