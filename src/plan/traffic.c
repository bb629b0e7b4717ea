/* Listing what passes the seams, and the documents of it. Gradients on their way through a reducer and gathers of
 * parameters are not here: those are planned, not seen (document.c). */
#include "plan/traffic.h"

#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "layout/shown.h"
#include "tensor/ring.h"

/* ---- listing ---- */

static int moves_bytes(const ad_transit *transit) {
  return transit->move != AD_MOVE_CONVERT && transit->move != AD_MOVE_ONCE && transit->move != AD_MOVE_DECLARE;
}

static int is_on_tape(const ad_transit *transit) { return !transit->what && !transit->names; }

/* Of one group together, the mean of all groups where they have parts of the whole: rank 0's part may be empty. */
static size_t group_bytes(const ad_array *in, ad_axes axes) {
  const ad_mesh *mesh = in->layout.mesh;
  ad_axes cut = ad_layout_cut_axes(&in->layout), own = ad_layout_axes_of(&in->layout, AD_V);
  size_t whole = (size_t)ad_shape_numel(&in->shape) * ad_dtype_size(in->dtype);
  return whole / (size_t)ad_mesh_ranks_over(mesh, cut & ~axes) * (size_t)ad_mesh_ranks_over(mesh, own & axes);
}

static ad_moved moved_by(const ad_transit_passing *pass) {
  const ad_transit *transit = pass->transit;
  ad_moved moved = {.op = ad_move_name(transit->move),
                    .axes = transit->axes & ad_mesh_large(pass->in->layout.mesh),
                    .mesh = pass->in->layout.mesh,
                    .dtype = pass->in->dtype,
                    .bytes = group_bytes(pass->in, transit->axes),
                    .backward = transit->backward,
                    .times = 1};
  snprintf(moved.site, sizeof moved.site, "%s", transit->site ? transit->site : "");
  return moved;
}

static int is_alike(const ad_moved *a, const ad_moved *b) {
  return !strcmp(a->op, b->op) && a->axes == b->axes && a->mesh == b->mesh && a->dtype == b->dtype &&
         a->bytes == b->bytes && a->backward == b->backward && !strcmp(a->site, b->site);
}

static void list_moved(ad_traffic *to, ad_moved moved) {
  if (to->status || !moved.axes) return;
  for (size_t i = 0; i < to->moved_count; i++) {
    if (!is_alike(&to->moved[i], &moved)) continue;
    to->moved[i].times++;
    return;
  }
  if (to->moved_count == to->moved_capacity) {
    size_t capacity = 2 * to->moved_capacity + 16;
    to->status = ad_grow(&to->moved, to->moved_capacity, capacity);
    if (to->status) return;
    to->moved_capacity = capacity;
  }
  to->moved[to->moved_count++] = moved;
}

static void list_transit(void *context, void *passing) {
  const ad_transit_passing *pass = passing;
  if (ad_comm_is_dry(pass->comm) && moves_bytes(pass->transit) && is_on_tape(pass->transit))
    list_moved(context, moved_by(pass));
}

/* Forward the keys and values of the group go around, backward their gradients too. */
static void list_ring(void *context, void *passing) {
  const ring_passing *pass = passing;
  const ad_mesh *mesh = pass->k->layout.mesh;
  if (!ad_comm_is_dry(pass->ring->comm)) return;
  ad_moved moved = {.op = "ring",
                    .axes = pass->ring->group.axes & ad_mesh_large(mesh),
                    .mesh = mesh,
                    .dtype = pass->ring->dtype,
                    .bytes = (pass->backward ? 4 : 2) * group_bytes(pass->k, pass->ring->group.axes),
                    .backward = pass->backward,
                    .times = 1};
  snprintf(moved.site, sizeof moved.site, "%s", pass->ring->site);
  list_moved(context, moved);
}

static ad_crossing *crossing_of(ad_traffic *traffic, const ad_route_passing *pass) {
  for (size_t i = 0; i < traffic->crossing_count; i++)
    if (traffic->crossings[i].bridge == pass->bridge && traffic->crossings[i].rows == pass->rows)
      return &traffic->crossings[i];
  if (traffic->crossing_count == traffic->crossing_capacity) {
    size_t capacity = 2 * traffic->crossing_capacity + 4;
    traffic->status = ad_grow(&traffic->crossings, traffic->crossing_capacity, capacity);
    if (traffic->status) return NULL;
    traffic->crossing_capacity = capacity;
  }
  ad_crossing *crossing = &traffic->crossings[traffic->crossing_count++];
  *crossing = (ad_crossing){.bridge = pass->bridge, .rows = pass->rows};
  snprintf(crossing->site, sizeof crossing->site, "%s", pass->site);
  return crossing;
}

static size_t row_bytes_of(const ad_array *array) {
  size_t bytes = ad_dtype_size(array->dtype);
  for (int i = 1; i < array->local.ndim; i++) bytes *= (size_t)array->local.dim[i];
  return bytes;
}

static void list_routes(void *context, void *passing) {
  const ad_route_passing *pass = passing;
  ad_traffic *to = context;
  if (to->status || !ad_comm_is_dry(pass->bridge->comm)) return;
  ad_crossing *crossing = crossing_of(to, pass);
  if (!crossing) return;
  int backward = pass->from->mesh != pass->bridge->from.mesh;
  if (backward) {
    crossing->gradient_row_bytes = row_bytes_of(pass->array);
  } else {
    crossing->row_bytes = row_bytes_of(pass->array);
    crossing->times++;
  }
}

void ad_traffic_begin(ad_traffic *traffic) {
  traffic->transit = ad_seams[AD_SEAM_TRANSIT];
  traffic->ring = ad_seams[AD_SEAM_RING];
  traffic->routes = ad_seams[AD_SEAM_ROUTES];
  ad_seams[AD_SEAM_TRANSIT] = (ad_seam_slot){list_transit, traffic};
  ad_seams[AD_SEAM_RING] = (ad_seam_slot){list_ring, traffic};
  ad_seams[AD_SEAM_ROUTES] = (ad_seam_slot){list_routes, traffic};
}

void ad_traffic_end(ad_traffic *traffic) {
  ad_seams[AD_SEAM_TRANSIT] = traffic->transit;
  ad_seams[AD_SEAM_RING] = traffic->ring;
  ad_seams[AD_SEAM_ROUTES] = traffic->routes;
}

void ad_traffic_release(ad_traffic *traffic) {
  ad_release(traffic->moved);
  ad_release(traffic->crossings);
}

/* ---- documents ---- */

static json_t *moved_document(const ad_moved *moved) {
  char axes[80];
  return json_pack("{s:s, s:s, s:s, s:I, s:s, s:I, s:s, s:I, s:s}", "op", moved->op, "mesh", ad_mesh_text(moved->mesh),
                   "axes", ad_axes_print(moved->axes, axes, sizeof axes), "group_size",
                   (json_int_t)ad_mesh_ranks_over(moved->mesh, moved->axes), "dtype", ad_dtype_name(moved->dtype),
                   "bytes", (json_int_t)moved->bytes, "when", moved->backward ? "backward" : "forward", "times",
                   (json_int_t)moved->times, "site", moved->site);
}

json_t *ad_traffic_activations(const ad_traffic *traffic) {
  json_t *list = json_array();
  for (size_t i = 0; i < traffic->moved_count; i++) json_array_append_new(list, moved_document(&traffic->moved[i]));
  return list;
}

static json_t *side_document(const ad_layout *layout, const ad_program *program) {
  char text[160];
  const char *module = "";
  for (size_t m = 0; m < ad_program_module_count(program); m++)
    if (ad_program_mesh(program, m) == layout->mesh) module = ad_program_module(program, m)->name;
  return json_pack("{s:s, s:s, s:s}", "module", module, "mesh", ad_mesh_text(layout->mesh), "layout",
                   ad_layout_shown(layout, text, sizeof text));
}

/* Where there are more senders, those of the first alone are listed. */
enum { SENDERS_MAX = 64, ROUTES_MAX = 64 };

/* One way over a bridge. */
typedef struct way {
  const ad_layout *from, *to;
  int64_t rows;
  size_t row_bytes;
} way;

static json_t *route_document(const way *w, int64_t rank, const ad_route *route) {
  ad_span own = {0, 0};
  ad_layout_spans(w->from, 0, w->rows, rank, &own, 1);
  json_int_t first_row = own.first + route->here, bytes = route->count * (int64_t)w->row_bytes;
  return json_pack("{s:I, s:I, s:I, s:I, s:I}", "from", (json_int_t)rank, "to", (json_int_t)route->peer, "first_row",
                   first_row, "rows", (json_int_t)route->count, "bytes", bytes);
}

static json_int_t add_routes(const way *w, int64_t rank, json_t *to) {
  ad_route routes[ROUTES_MAX];
  size_t count = ad_bridge_sends(w->from, w->to, w->rows, rank, routes, ROUTES_MAX);
  size_t listed = count < ROUTES_MAX ? count : ROUTES_MAX;
  for (size_t i = 0; i < listed; i++) json_array_append_new(to, route_document(w, rank, &routes[i]));
  return (json_int_t)count - (json_int_t)listed;
}

static json_t *way_document(const ad_layout *from, const ad_layout *to, int64_t rows, size_t row_bytes) {
  way w = {from, to, rows, row_bytes};
  int64_t first = ad_mesh_first_rank(from->mesh), senders = ad_mesh_size(from->mesh);
  int64_t listed = senders <= SENDERS_MAX ? senders : 1;
  json_int_t left_out = 0;
  json_t *routes = json_array();
  for (int64_t i = 0; i < listed; i++) left_out += add_routes(&w, first + i, routes);
  return json_pack("{s:I, s:I, s:I, s:I, s:o}", "row_bytes", (json_int_t)row_bytes, "senders", (json_int_t)senders,
                   "senders_listed", (json_int_t)listed, "routes_left_out", left_out, "routes", routes);
}

static json_t *crossing_document(const ad_crossing *crossing, const ad_program *program) {
  const ad_layout *from = &crossing->bridge->from, *to = &crossing->bridge->to;
  return json_pack("{s:o, s:o, s:I, s:I, s:s, s:o, s:o}", "from", side_document(from, program), "to",
                   side_document(to, program), "rows", (json_int_t)crossing->rows, "times", (json_int_t)crossing->times,
                   "site", crossing->site, "forward", way_document(from, to, crossing->rows, crossing->row_bytes),
                   "backward", way_document(to, from, crossing->rows, crossing->gradient_row_bytes));
}

json_t *ad_traffic_bridges(const ad_traffic *traffic, const ad_program *program) {
  json_t *list = json_array();
  for (size_t i = 0; i < traffic->crossing_count; i++)
    json_array_append_new(list, crossing_document(&traffic->crossings[i], program));
  return list;
}
