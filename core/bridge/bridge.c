/* Bridges: checks the layouts and arrays on both sides, and moves rows between the sides. */
#include "addend/bridge.h"

#include <inttypes.h>
#include <string.h>
#include "array/array.h"
#include "array/transit.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/injection.h"
#include "base/text.h"
#include "bridge/identical.h"
#include "bridge/bridge.h"
#include "bridge/route.h"
#include "layout/sentences.h"
#include "mesh/blocks.h"
#include "mesh/mesh.h"

/* ---- checking the layouts of both sides ---- */

static ad_status check_ranks(const ad_mesh *from, const ad_mesh *to, int *disjoint) {
  *disjoint = ad_mesh_last_rank(from) < ad_mesh_first_rank(to) || ad_mesh_last_rank(to) < ad_mesh_first_rank(from);
  if (*disjoint || ad_mesh_same_ranks(from, to)) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "a bridge joins meshes with the same ranks or with no rank in common, but the source's mesh \"%s\" has %" PRId64
      " rank%s (%" PRId64 " to %" PRId64 ") and the destination's mesh \"%s\" has %" PRId64 " (%" PRId64 " to %" PRId64
      "); change one of the meshes",
      ad_mesh_text(from), ad_mesh_size(from), ad_plural(ad_mesh_size(from)), ad_mesh_first_rank(from),
      ad_mesh_last_rank(from), ad_mesh_text(to), ad_mesh_size(to), ad_mesh_first_rank(to), ad_mesh_last_rank(to));
}

static ad_status check_stages(const ad_mesh *mesh, const char *side) {
  int64_t stages = ad_mesh_axis_size(mesh, AD_PP);
  if (stages == 1) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the %s of a bridge has pp=%" PRId64
                 ", but a bridge joins modules that have one stage each; set pp=1 in the mesh of the %s",
                 side, stages, side);
}

static ad_status refuse_side(const char *side, ad_axis axis, ad_type is, const char *repair) {
  char type[16];
  return ad_fail(AD_TYPE, "the %s of the bridge is %s on `%s`, but %s", side, ad_type_print(is, type, sizeof type),
                 ad_axis_name(axis), repair);
}

static int is_dp(int axis) { return (AD_AXES(axis) & AD_AXES_DP) != 0; }

/* Returns 1 if the layout's type on this axis matters, else 0. On an axis of size 1 the type matters only if the mesh
 * names the axis. */
static int counts(const ad_layout *layout, int axis) {
  return ((ad_mesh_named(layout->mesh) | ad_mesh_large(layout->mesh)) & AD_AXES(axis)) != 0;
}

/* Checks the source's layout of a value that is sharded by batch. */
static ad_status check_source(const ad_layout *from) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type is = from->type[axis];
    if (!counts(from, axis)) continue;
    if (is_dp(axis) && is != AD_S(0))
      return refuse_side("source", (ad_axis)axis, is,
                         "on a dp axis the value must be sharded by batch, S(0); set this type");
    if (is_dp(axis) || is == AD_I) continue;
    if (is == AD_R)
      return refuse_side("source", (ad_axis)axis, is,
                         "a source of type R would have its gradient counted once for each replica" AD_MAY_REPAIR
                         "convert I->R after the bridge, or gather S->I before the bridge");
    return refuse_side("source", (ad_axis)axis, is,
                       "all replicas of the source must be the same (I)" AD_MAY_REPAIR
                       "all_gather S->I or all_reduce P->I before the bridge");
  }
  return AD_OK;
}

/* Checks the destination's layout of a value that is sharded by batch. */
static ad_status check_destination(const ad_layout *to) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    ad_type is = to->type[axis];
    if (!counts(to, axis)) continue;
    if (is_dp(axis) && is != AD_S(0))
      return refuse_side("destination", (ad_axis)axis, is,
                         "on a dp axis the value must be sharded by batch, S(0); set this type");
    if (axis == AD_CP && is != AD_R)
      return refuse_side("destination", (ad_axis)axis, is,
                         "on cp the value must be R, because each rank uses a part of the sequence; set R");
    if (is_dp(axis) || is == AD_R || is == AD_I) continue;
    return refuse_side("destination", (ad_axis)axis, is,
                       "the destination must be the full value (I or R) there; shard the value after the bridge");
  }
  return AD_OK;
}

/* Checks the source's layout of a value that is not sharded (a weight). */
static ad_status check_full_source(const ad_layout *from) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!counts(from, axis) || from->type[axis] == AD_I || from->type[axis] == AD_R) continue;
    return refuse_side("source", (ad_axis)axis, from->type[axis],
                       "a value that is not sharded by batch must be the same on all ranks (I or R); reduce or gather "
                       "the value before the bridge");
  }
  return AD_OK;
}

static ad_status check_full_destination(const ad_layout *to) {
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (!counts(to, axis) || to->type[axis] == AD_I || to->type[axis] == AD_R) continue;
    return refuse_side("destination", (ad_axis)axis, to->type[axis],
                       "every rank must get the full value (I or R); set one of these");
  }
  return AD_OK;
}

static int is_sharded(const ad_layout *layout) { return ad_layout_sharded_axes(layout) != 0; }

static ad_status check_types(const ad_layout *from, const ad_layout *to) {
  int full = !is_sharded(from) && !is_sharded(to);
  AD_TRY(full ? check_full_source(from) : check_source(from));
  return full ? check_full_destination(to) : check_destination(to);
}

static int64_t parts(const ad_layout *layout) {
  return ad_mesh_ranks_over(layout->mesh, ad_layout_sharded_axes(layout));
}

static ad_status check_parts(const ad_layout *from, const ad_layout *to) {
  int64_t a = parts(from), b = parts(to), least = a < b ? a : b, most = a < b ? b : a;
  if (most % least == 0) return AD_OK;
  return ad_fail(AD_INVALID,
                 "the source of a bridge shards the batch into %" PRId64 " parts, the destination into %" PRId64
                 ", and neither number divides the other; use %" PRId64 " parts on one side with %" PRId64
                 " or %" PRId64 " parts on the other, or allow ragged splits",
                 a, b, least, least * (most / least), least * (most / least + 1));
}

static ad_status check_sides(const ad_layout *from, const ad_layout *to, const ad_bridge_options *options,
                             int *disjoint) {
  AD_TRY(check_ranks(from->mesh, to->mesh, disjoint));
  if (options->identical) return ad_identical_bridge_check(from, to, options);
  AD_TRY(check_stages(from->mesh, "source"));
  AD_TRY(check_stages(to->mesh, "destination"));
  AD_TRY(check_types(from, to));
  return options->ragged ? AD_OK : check_parts(from, to);
}

ad_status ad_bridge_check(const ad_layout *from, const ad_layout *to, const ad_bridge_options *options) {
  ad_bridge_options own;
  int disjoint;
  AD_NEED(from, to);
  AD_NEED(from->mesh, to->mesh);
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_bridge_options"));
  return check_sides(from, to, &own, &disjoint);
}

static int64_t rows_multiple(const ad_layout *from, const ad_layout *to, const ad_bridge_options *options) {
  int64_t a = parts(from), b = parts(to);
  return options->ragged || options->identical ? 1 : a < b ? b : a;
}

ad_status ad_bridge_rows_multiple(const ad_layout *from, const ad_layout *to, const ad_bridge_options *options,
                                  int64_t *out) {
  ad_bridge_options own;
  AD_NEED(from, to, out);
  AD_NEED(from->mesh, to->mesh);
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_bridge_options"));
  *out = rows_multiple(from, to, &own);
  return AD_OK;
}

/* ---- creating and destroying a bridge ---- */

ad_status ad_bridge_create(ad_comm *comm, const ad_layout *from, const ad_layout *to, const ad_bridge_options *options,
                           ad_bridge **out) {
  AD_NEED(comm, from, to, out);
  AD_NEED(from->mesh, to->mesh);
  ad_bridge_options own;
  ad_bridge *bridge;
  int disjoint;
  AD_TRY(ad_options_take(&own, sizeof own, options, "ad_bridge_options"));
  AD_TRY(check_sides(from, to, &own, &disjoint));
  AD_TRY(ad_new(1, &bridge));
  *bridge = (ad_bridge){.comm = comm, .from = *from, .to = *to, .options = own, .disjoint = disjoint};
  bridge->known[AD_FORWARD].rows = bridge->known[AD_BACKWARD].rows = bridge->kept_rows = -1;
  bridge->rows_multiple = rows_multiple(from, to, &own);
  ad_status status = disjoint ? ad_mesh_create_both(from->mesh, to->mesh, &bridge->both) : AD_OK;
  if (status) {
    ad_bridge_destroy(bridge);
    return status;
  }
  *out = bridge;
  return AD_OK;
}

static void release_way(ad_known_way *known) {
  ad_release(known->routes);
  ad_release(known->members);
  ad_release(known->messages);
}

void ad_bridge_destroy(ad_bridge *bridge) {
  if (!bridge) return;
  release_way(&bridge->known[AD_FORWARD]);
  release_way(&bridge->known[AD_BACKWARD]);
  ad_mesh_destroy(bridge->both);
  ad_release(bridge);
}

int ad_bridge_is_identical(const ad_bridge *bridge) { return bridge->options.identical; }
int ad_bridge_is_disjoint(const ad_bridge *bridge) { return bridge->disjoint; }
int ad_bridge_has_source(const ad_bridge *bridge) {
  return ad_mesh_has_rank(bridge->from.mesh, ad_comm_rank(bridge->comm));
}
int ad_bridge_has_destination(const ad_bridge *bridge) {
  return ad_mesh_has_rank(bridge->to.mesh, ad_comm_rank(bridge->comm));
}
ad_layout ad_bridge_from(const ad_bridge *bridge) { return bridge->from; }
ad_layout ad_bridge_to(const ad_bridge *bridge) { return bridge->to; }

/* ---- checking arrays on either side ---- */

static ad_status check_batch(const ad_bridge *bridge, int64_t rows, const char *site) {
  int64_t most = bridge->rows_multiple;
  int64_t below = rows / most * most;
  if (below == rows) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the bridge cannot divide a batch of %" PRId64 " rows evenly into the %" PRId64
                 " parts of the %s; use %" PRId64 " or %" PRId64 " rows, or allow ragged splits",
                 site, rows, most, parts(&bridge->from) < most ? "destination" : "source", below ? below : most,
                 below ? below + most : 2 * most);
}

ad_status ad_bridge_describe_at(const ad_bridge *bridge, ad_dtype dtype, const ad_shape *shape, ad_pass pass,
                                ad_array *source, ad_array *destination, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(bridge, shape, source, destination);
  if (!shape->ndim && !bridge->options.identical)
    return ad_fail(
        AD_INVALID,
        "%s: the bridge cannot shard a scalar, which has no batch dimension; give the value a first dimension", site);
  AD_TRY(check_batch(bridge, shape->dim[0], site));
  int backward = pass == AD_BACKWARD;
  ad_layout from = backward ? ad_layout_dual(&bridge->from) : bridge->from;
  ad_layout to = backward ? ad_layout_dual(&bridge->to) : bridge->to;
  *source = *destination = (ad_array){0};
  if (ad_bridge_has_source(bridge)) *source = ad_array_describe(bridge->comm, dtype, shape, &from);
  if (ad_bridge_has_destination(bridge)) *destination = ad_array_describe(bridge->comm, dtype, shape, &to);
  return AD_OK;
}

static int is_absent(const ad_bridge *bridge, const ad_array *array) {
  return !array || !array->layout.mesh || (!array->shape.ndim && !bridge->options.identical);
}

/* Checks the array of one side of the bridge: its layout, its number of rows and its memory. */
static ad_status check_array(const ad_bridge *bridge, const ad_array *array, const ad_layout *wanted, const char *side,
                             const char *site) {
  char is[160], should[160];
  if (is_absent(bridge, array))
    return ad_fail(
        AD_INVALID,
        "%s: the %s array of the bridge is missing on this rank; pass the array that ad_bridge_describe gives", site,
        side);
  if (!ad_layout_equal(&array->layout, wanted))
    return ad_fail(AD_TYPE,
                   "%s: the %s of the bridge has layout \"%s\" on mesh \"%s\", but must have layout \"%s\" on mesh "
                   "\"%s\"; take the array's description from ad_bridge_describe",
                   site, side, ad_layout_print(&array->layout, is, sizeof is), ad_mesh_text(array->layout.mesh),
                   ad_layout_print(wanted, should, sizeof should), ad_mesh_text(wanted->mesh));
  AD_TRY(check_batch(bridge, array->shape.dim[0], site));
  return ad_array_check(bridge->comm, array, side, site);
}

ad_status ad_bridge_check_source(const ad_bridge *bridge, const ad_array *array, const char *site) {
  return check_array(bridge, array, &bridge->from, "source", site);
}

/* Returns 1 if the array need not be checked again: it has the layout `wanted` and the shapes of an array that was
 * checked before. check_array depends on nothing else. */
static int is_like(const ad_array *array, const ad_sizes *checked, const ad_layout *wanted) {
  return array && array->data && !array->segments && checked->shape.ndim && ad_layout_equal(&array->layout, wanted) &&
         ad_shape_equal(&array->shape, &checked->shape) && ad_shape_equal(&array->local, &checked->local);
}

/* Checks an array that is sent (`arrives` 0) or received (`arrives` 1), unless the last such array had the same shapes:
 * from one step to the next usually only the memory changes. */
static ad_status check_passing(ad_bridge *bridge, ad_pass pass, int arrives, const ad_array *array,
                               const ad_layout *wanted, const char *side, const char *site) {
  int is_source = (pass == AD_FORWARD) != arrives;
  ad_sizes *checked = &bridge->checked[pass][arrives];
  if (!(is_source ? ad_bridge_has_source(bridge) : ad_bridge_has_destination(bridge))) return AD_OK;
  if (is_like(array, checked, wanted)) return AD_OK;
  AD_TRY(check_array(bridge, array, wanted, side, site));
  *checked = (ad_sizes){array->shape, array->local};
  return AD_OK;
}

/* ---- moving rows from the source's ranks to the destination's ---- */

/* Returns the array of the side that this rank is on. */
static const ad_array *present(const ad_bridge_way *w) { return w->in.shape.ndim ? &w->in : &w->out; }
static int64_t batch_of(const ad_bridge_way *w) { return present(w)->shape.dim[0]; }

static ad_bridge_way way_of(const ad_layout *from, const ad_layout *to, const ad_array *in, const ad_array *out) {
  ad_bridge_way w = {.from = from, .to = to};
  if (in) w.in = *in;
  if (out) w.out = *out;
  return w;
}

size_t ad_bridge_row_numel(const ad_array *array) {
  size_t row = 1;
  for (int i = 1; i < array->local.ndim; i++) row *= (size_t)array->local.dim[i];
  return row;
}

/* Returns this rank's group: the ranks that move rows to each other. */
static ad_group group_of(const ad_bridge *bridge, const ad_bridge_way *w) {
  int64_t rank = ad_comm_rank(bridge->comm);
  if (bridge->disjoint) return ad_mesh_group(bridge->both, AD_AXES_ALL, rank);
  return ad_mesh_group(w->from->mesh, ad_layout_sharded_axes(w->from), rank);
}

/* Returns 1 if every rank of the group already has the rows that it needs, so nothing is sent. */
static int is_local(const ad_bridge *bridge, const ad_bridge_way *w, const ad_group *group) {
  if (bridge->disjoint) return 0;
  for (int64_t i = 0; i < ad_group_size(group); i++)
    if (!ad_bridge_same_rows(w->from, w->to, batch_of(w), ad_group_rank(group, i))) return 0;
  return 1;
}

int ad_bridge_is_local(const ad_bridge *bridge, int64_t rows) {
  if (bridge->options.identical) return !bridge->disjoint;
  if (bridge->known[AD_FORWARD].rows == rows) return bridge->known[AD_FORWARD].is_local;
  ad_array batch = {.shape = {1, {rows}}};
  ad_bridge_way w = way_of(&bridge->from, &bridge->to, &batch, NULL);
  ad_group group = group_of(bridge, &w);
  return is_local(bridge, &w, &group);
}

static ad_status take_room(ad_known_way *known, size_t count) {
  if (count <= known->capacity) return AD_OK;
  AD_TRY(ad_grow(&known->routes, known->capacity, count));
  AD_TRY(ad_grow(&known->members, known->capacity, count));
  AD_TRY(ad_grow(&known->messages, known->capacity, count));
  known->capacity = count;
  return AD_OK;
}

/* Finds the rows that this rank sends and receives, and the ranks to which and from which they go. */
static ad_status find_routes(ad_bridge *bridge, const ad_bridge_way *w, ad_known_way *known) {
  int64_t rank = ad_comm_rank(bridge->comm), rows = batch_of(w);
  size_t sends = ad_bridge_sends(w->from, w->to, rows, rank, NULL, 0);
  size_t receives = ad_bridge_receives(w->from, w->to, rows, rank, NULL, 0);
  // + 1, so that there is memory even if this rank sends and receives no rows
  AD_TRY(take_room(known, sends + receives + 1));
  ad_bridge_sends(w->from, w->to, rows, rank, known->routes, sends);
  ad_bridge_receives(w->from, w->to, rows, rank, known->routes + sends, receives);
  known->sends = sends;
  known->count = sends + receives;
  for (size_t i = 0; i < known->count; i++) known->members[i] = ad_group_index(&known->group, known->routes[i].peer);
  return AD_OK;
}

/* *out: the routes of this direction for the batch's number of rows. They are computed again only if this number has
 * changed. */
static ad_status find_way(ad_bridge *bridge, const ad_bridge_way *w, ad_known_way **out) {
  ad_known_way *known = *out = &bridge->known[w->from == &bridge->from ? AD_FORWARD : AD_BACKWARD];
  int64_t rank = ad_comm_rank(bridge->comm), rows = batch_of(w);
  if (known->rows == rows) return AD_OK;
  known->rows = -1;
  known->group = group_of(bridge, w);
  known->own = ad_group_index(&known->group, rank);
  known->is_local = is_local(bridge, w, &known->group);
  known->is_counted = ad_bridge_counts_there(w->to, rank);
  if (!known->is_local) AD_TRY(find_routes(bridge, w, known));
  known->rows = rows;
  return AD_OK;
}

/* Returns 1 if this rank sends the message to itself and the rows are already in place, because source and destination
 * share memory. */
static int is_there(const ad_bridge_way *w, const ad_message *message, int64_t own) {
  return message->peer == own && w->in.data && w->in.data == w->out.data;
}

/* Makes the messages for the routes; returns how many there are. */
static size_t make_messages(const ad_bridge_way *w, const ad_route_passing *routes, const ad_known_way *known) {
  size_t count = 0, element = ad_dtype_size(present(w)->dtype), row = ad_bridge_row_numel(present(w));
  for (size_t i = 0; i < routes->count; i++) {
    const ad_route *route = &routes->routes[i];
    int sends = i < routes->sends;
    char *data = (char *)(sends ? w->in.data : w->out.data) + (size_t)route->here * row * element;
    ad_message message = {.peer = known->members[i],
                          .send = sends ? data : NULL,
                          .receive = sends ? NULL : data,
                          .count = (size_t)route->count * row};
    if (!is_there(w, &message, known->own)) known->messages[count++] = message;
  }
  return count;
}

/* Passes the routes to the injection point. If a mutation is installed there, it may change routes and group; the
 * routes are then computed again for the next call. */
static void pass_routes(ad_bridge *bridge, const ad_bridge_way *w, ad_known_way *known, const char *site,
                        ad_route_passing *out) {
  *out = (ad_route_passing){.bridge = bridge,
                            .from = w->from,
                            .to = w->to,
                            .rows = known->rows,
                            .array = present(w),
                            .out = w->out.shape.ndim ? &w->out : NULL,
                            .site = site,
                            .group = known->group,
                            .routes = known->routes,
                            .sends = known->sends,
                            .count = known->count};
  if (!ad_injection_at(AD_INJECT_ROUTES).function) return;
  known->rows = -1;
  ad_inject(AD_INJECT_ROUTES, out);
  known->own = ad_group_index(&out->group, ad_comm_rank(bridge->comm));
  for (size_t i = 0; i < out->count; i++) known->members[i] = ad_group_index(&out->group, out->routes[i].peer);
}

/* Zeroes the arriving gradient on all replicas of the source but the first, and returns 1 if it did. The gradient of a
 * source that is R must count only once (law 7). */
static int clear_other_replica(const ad_bridge_way *w, const ad_known_way *known) {
  if (!w->out.shape.ndim || known->is_counted) return 0;
  if (w->out.data) memset(w->out.data, 0, ad_array_bytes(&w->out));
  return 1;
}

/* Copies this rank's part, unless source and destination share memory. */
static void copy_own(const ad_bridge_way *w) {
  if (w->in.data && w->out.data && w->in.data != w->out.data) memcpy(w->out.data, w->in.data, ad_array_bytes(&w->out));
}

/* Moves rows in one direction. If `request` is NULL, returns when all rows are moved; otherwise posts the exchange. */
static ad_status move_rows(ad_bridge *bridge, const ad_bridge_way *w, const char *site, ad_request *request) {
  ad_known_way *known;
  ad_route_passing routes;
  if (request) *request = (ad_request){0};
  if (bridge->options.identical) return ad_identical_bridge_move(bridge, w, site, request);
  AD_TRY(find_way(bridge, w, &known));
  int is_cleared = clear_other_replica(w, known);
  if (known->is_local) {
    if (!is_cleared) copy_own(w);
    return AD_OK;
  }
  pass_routes(bridge, w, known, site, &routes);
  if (ad_comm_is_dry(bridge->comm)) return AD_OK;
  ad_collective exchange = {.size = sizeof exchange,
                            .op = AD_EXCHANGE,
                            .group = routes.group,
                            .messages = known->messages,
                            .message_count = make_messages(w, &routes, known),
                            .dtype = present(w)->dtype,
                            .site = site};
  return request ? ad_comm_post(bridge->comm, &exchange, request) : ad_comm_run(bridge->comm, &exchange);
}

/* ---- forward moves values, backward moves gradients ---- */

/* Moves a value to the destination, which must have the layout `to`. */
static ad_status go_forward(ad_bridge *bridge, const ad_array *source, const ad_layout *to, ad_array *destination,
                            const char *site, ad_request *request) {
  AD_TRY(check_passing(bridge, AD_FORWARD, 0, source, &bridge->from, "source", site));
  AD_TRY(check_passing(bridge, AD_FORWARD, 1, destination, to, "destination", site));
  ad_bridge_way w = way_of(&bridge->from, &bridge->to, ad_bridge_has_source(bridge) ? source : NULL,
                           ad_bridge_has_destination(bridge) ? destination : NULL);
  return move_rows(bridge, &w, site, request);
}

ad_status ad_bridge_forward_at(ad_bridge *bridge, const ad_array *source, ad_array *destination, const char *site) {
  AD_NEED(bridge);
  return go_forward(bridge, source, &bridge->to, destination, site ? site : AD_NO_SITE, NULL);
}

ad_axes ad_bridge_added(const ad_bridge *bridge) {
  const ad_mesh *mesh = bridge->to.mesh;
  if (bridge->options.identical) return 0;
  return ad_layout_axes_of(&bridge->to, AD_R) & (ad_mesh_named(mesh) | ad_mesh_large(mesh));
}

ad_layout ad_bridge_arrives(const ad_bridge *bridge) {
  ad_layout arrives = bridge->to;
  ad_layout_set(&arrives, ad_bridge_added(bridge), AD_I);
  return arrives;
}

ad_status ad_bridge_post_forward_at(ad_bridge *bridge, const ad_array *source, ad_array *destination, ad_request *out,
                                    const char *site) {
  AD_NEED(bridge, out);
  ad_layout arrives = ad_bridge_arrives(bridge);
  return go_forward(bridge, source, &arrives, destination, site ? site : AD_NO_SITE, out);
}

static ad_status check_gradients(ad_bridge *bridge, const ad_array *destination, const ad_layout *to,
                                 const ad_array *source, const char *site) {
  ad_layout from = ad_layout_dual(&bridge->from);
  AD_TRY(check_passing(bridge, AD_BACKWARD, 1, source, &from, "source's gradient", site));
  return check_passing(bridge, AD_BACKWARD, 0, destination, to, "gradient", site);
}

/* Moves a gradient back to the source. `summed` is the destination's gradient; unless the meshes are identical, its
 * addends are already summed. */
static ad_status go_back(ad_bridge *bridge, const ad_array *summed, ad_array *source, const char *site,
                         ad_request *request) {
  ad_layout from = ad_layout_dual(&bridge->from);
  ad_bridge_way w = way_of(&bridge->to, &from, ad_bridge_has_destination(bridge) ? summed : NULL,
                           ad_bridge_has_source(bridge) ? source : NULL);
  return move_rows(bridge, &w, site, request);
}

ad_status ad_bridge_backward_numbered(ad_bridge *bridge, ad_array *destination, ad_array *source, int ordinal,
                                      const char *site) {
  ad_layout to = ad_layout_dual(&bridge->to);
  ad_array summed = {0};
  AD_TRY(check_gradients(bridge, destination, &to, source, site));
  if (bridge->options.identical) return go_back(bridge, destination, source, site, NULL);
  if (ad_bridge_has_destination(bridge)) {
    if (ad_bridge_keeps_rows(bridge, destination->shape.dim[0]))
      return ad_bridge_sum_kept(bridge, destination, source, ordinal, site);
    summed = *destination;
    AD_TRY(ad_bridge_sum(bridge, &summed, ordinal, site));
  }
  return go_back(bridge, &summed, source, site, NULL);
}

ad_status ad_bridge_post_backward_at(ad_bridge *bridge, const ad_array *destination, ad_array *source, ad_request *out,
                                     const char *site) {
  AD_NEED(bridge, out);
  ad_layout arrives = ad_bridge_arrives(bridge), to = ad_layout_dual(&arrives);
  if (!site) site = AD_NO_SITE;
  AD_TRY(check_gradients(bridge, destination, &to, source, site));
  return go_back(bridge, destination, source, site, out);
}

ad_status ad_bridge_backward_at(ad_bridge *bridge, ad_array *destination, ad_array *source, const char *site) {
  AD_NEED(bridge);
  return ad_bridge_backward_numbered(bridge, destination, source, 0, site ? site : AD_NO_SITE);
}
