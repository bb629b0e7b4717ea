/* Bridges between identical meshes: each rank's part is sent to the rank at the same position of the other mesh,
 * without slicing or summing. Therefore the two sides must have the same types; every type but P is allowed. */
#include "bridge/identical.h"

#include <inttypes.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/injection.h"
#include "mesh/mesh.h"

/* ---- which sides a bridge between identical meshes may join ---- */

static ad_status check_options(const ad_bridge_options *options) {
  if (options->ragged)
    return ad_fail(AD_INVALID,
                   "the options `identical` and `ragged` of a bridge exclude each other, because no part is sharded "
                   "again between identical meshes; leave `ragged` out");
  if (options->tag >= 0 && options->tag <= INT64_MAX / 2) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the option `tag` of a bridge is %" PRId64 ", but must be from 0 to %" PRId64
                 "; set a tag in this range",
                 options->tag, INT64_MAX / 2);
}

static ad_status check_meshes(const ad_mesh *from, const ad_mesh *to) {
  if (!strcmp(ad_mesh_text(from), ad_mesh_text(to))) return AD_OK;
  return ad_fail(AD_INVALID,
                 "a bridge with the option `identical` needs meshes with the same axes and sizes in the same order, "
                 "but the source's mesh is \"%s\" and the destination's mesh is \"%s\"; use one mesh text for both, or "
                 "leave `identical` out",
                 ad_mesh_text(from), ad_mesh_text(to));
}

/* Checks that the two layouts have the same type and nesting on an axis, and that the type is not P. */
static ad_status check_axis(const ad_layout *from, const ad_layout *to, ad_axis axis) {
  const char *name = ad_axis_name(axis);
  char is[16], becomes[16];
  ad_type_print(from->type[axis], is, sizeof is);
  ad_type_print(to->type[axis], becomes, sizeof becomes);
  if (from->type[axis] != to->type[axis])
    return ad_fail(AD_TYPE,
                   "a bridge between identical meshes needs one type on each axis, but the source is %s on `%s` and "
                   "the destination is %s; give both sides the same type there",
                   is, name, becomes);
  if (from->type[axis] == AD_P)
    return ad_fail(AD_TYPE,
                   "the source of the bridge is P on `%s`, but a bridge does not sum; sum the source first, by "
                   "all_reduce P->I or P->R",
                   name);
  if (from->depth[axis] == to->depth[axis]) return AD_OK;
  return ad_fail(AD_TYPE,
                 "the source and the destination of the bridge are %s on `%s`, but nest their axes in different "
                 "orders; name the axes in the same order in the layouts of both sides",
                 is, name);
}

static ad_status check_types(const ad_layout *from, const ad_layout *to) {
  ad_axes meant = ad_mesh_named(from->mesh) | ad_mesh_large(from->mesh);
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++)
    if (meant & AD_AXES(axis)) AD_TRY(check_axis(from, to, (ad_axis)axis));
  return AD_OK;
}

ad_status ad_identical_bridge_check(const ad_layout *from, const ad_layout *to, const ad_bridge_options *options) {
  AD_TRY(check_options(options));
  AD_TRY(check_meshes(from->mesh, to->mesh));
  return check_types(from, to);
}

/* ---- both sides on the same ranks: a copy ---- */

static ad_status copy_part(const ad_array *in, const ad_array *out, const char *site) {
  char from[96], to[96];
  if (in->dtype != out->dtype || !ad_shape_equal(&in->local, &out->local))
    return ad_fail(AD_INVALID,
                   "%s: the bridge sends and receives parts of one dtype and shape, but the receiving part is %s %s "
                   "and the sent part is %s %s; give both sides arrays of one dtype and shape",
                   site, ad_dtype_name(out->dtype), ad_shape_print(&out->local, to, sizeof to),
                   ad_dtype_name(in->dtype), ad_shape_print(&in->local, from, sizeof from));
  if (in->data && out->data && in->data != out->data) memcpy(out->data, in->data, ad_array_bytes(in));
  return AD_OK;
}

/* ---- sides on different ranks: one transfer ---- */

/* Returns 1 if this rank is on the sending side. */
static int sends(const ad_bridge_way *way) { return way->in.layout.mesh != NULL; }
static const ad_array *part_of(const ad_bridge_way *way) { return sends(way) ? &way->in : &way->out; }
static int64_t rows_of(const ad_shape *shape) { return shape->ndim ? shape->dim[0] : 1; }

/* Returns the rank that has this rank's position on the other mesh. */
static int64_t peer_of(const ad_bridge *bridge, const ad_bridge_way *way) {
  const ad_mesh *here = sends(way) ? way->from->mesh : way->to->mesh;
  const ad_mesh *there = sends(way) ? way->to->mesh : way->from->mesh;
  ad_group own = ad_mesh_group(here, AD_AXES_ALL, ad_comm_rank(bridge->comm));
  ad_group others = ad_mesh_group(there, AD_AXES_ALL, ad_mesh_first_rank(there));
  return ad_group_rank(&others, ad_group_index(&own, ad_comm_rank(bridge->comm)));
}

/* Makes the route of this rank's part. A mutation at the injection point may change the route. */
static void pass_route(const ad_bridge *bridge, const ad_bridge_way *way, const char *site, ad_route *route) {
  const ad_array *part = part_of(way);
  *route = (ad_route){.peer = peer_of(bridge, way), .count = rows_of(&part->local)};
  ad_inject(AD_INJECT_ROUTES,
            &(ad_route_passing){.bridge = bridge,
                                .from = way->from,
                                .to = way->to,
                                .rows = rows_of(&part->shape),
                                .array = part,
                                .out = sends(way) ? NULL : part,
                                .site = site,
                                .group = ad_mesh_group(bridge->both, AD_AXES_ALL, ad_comm_rank(bridge->comm)),
                                .routes = route,
                                .sends = sends(way) != 0,
                                .count = 1});
}

/* Returns the tag of this direction's transfers. Forward and backward have different tags, so that their transfers are
 * matched separately. */
static int64_t tag_of(const ad_bridge *bridge, const ad_bridge_way *way) {
  return 2 * bridge->options.tag + (way->from == &bridge->from ? 0 : 1);
}

/* Describes this rank's side of the transfer. A part without elements is transferred, too, so that sender and receiver
 * make the same sequence of transfers. */
static ad_transfer transfer_of(const ad_bridge *bridge, const ad_bridge_way *way, const ad_route *route,
                               const char *site) {
  const ad_array *part = part_of(way);
  size_t row = ad_bridge_row_numel(part);
  char *data = part->data ? (char *)part->data + (size_t)route->here * row * ad_dtype_size(part->dtype) : NULL;
  return (ad_transfer){.size = sizeof(ad_transfer),
                       .peer = route->peer,
                       .tag = tag_of(bridge, way),
                       .send = sends(way) ? data : NULL,
                       .receive = sends(way) ? NULL : data,
                       .receives = !sends(way),
                       .count = (size_t)route->count * row,
                       .dtype = part->dtype,
                       .site = site};
}

ad_status ad_identical_bridge_move(ad_bridge *bridge, const ad_bridge_way *way, const char *site, ad_request *request) {
  ad_route route;
  if (!part_of(way)->layout.mesh) return AD_OK;  // this rank is on neither side
  if (!bridge->disjoint) return copy_part(&way->in, &way->out, site);
  pass_route(bridge, way, site, &route);
  if (ad_comm_is_dry(bridge->comm)) return AD_OK;
  ad_transfer transfer = transfer_of(bridge, way, &route, site);
  return request ? ad_comm_post_transfer(bridge->comm, &transfer, request)
                 : ad_comm_transfer(bridge->comm, &transfer, NULL);
}
