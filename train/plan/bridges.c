/* Computes what the bridges of a program send. A program declares its bridges for all ranks, so one process can compute
 * what all ranks send. */
#include "base/error.h"
#include "base/memory.h"
#include "bridge/bridge.h"
#include "bridge/route.h"
#include "layout/shown.h"
#include "plan/pools.h"
#include "program/program.h"
#include "step/run.h"
#include "mesh/mesh.h"

/* If a side of a bridge has more than RANKS_MAX ranks, only the routes of its first rank are listed. */
enum { RANKS_MAX = 64, ROUTES_MAX = 64 };

/* One direction of a bridge: that of the value (forward), or that of its gradient (backward). */
typedef struct way {
  const ad_layout *from, *to;
  int64_t rows;
  size_t row_bytes;
  ad_dtype dtype; /* the dtype in which values are sent */
  ad_shape shape; /* the shape of the full value */
  int identical;  /* 1: both sides have meshes of the same shape, and each rank sends its part to the rank at its own
                   * position */
} way;

/* A value that is sent over a bridge in all microbatches with the same number of rows. */
typedef struct transfer {
  const ad_transfer_spec *spec;
  ad_layout from, to, back; /* layouts of the value on both sides; `back` is the layout of the gradient where it
                             * arrives */
  /* the rows of a microbatch, and the number of microbatches in a step that have this many rows */
  int64_t rows, times;
  ad_dtype dtypes[2]; /* the dtypes in which the value and its gradient are sent */
} transfer;

static size_t row_bytes_of(const ad_shape *shape, ad_dtype dtype) {
  size_t bytes = ad_dtype_size(dtype);
  for (int dim = 1; dim < shape->ndim; dim++) bytes *= (size_t)shape->dim[dim];
  return bytes;
}

/* Returns the direction of the value or, if `backward` is 1, that of its gradient, which has no rows if the transfer is
 * one-way. */
static way way_of(const transfer *c, int backward) {
  int64_t rows = backward && c->spec->one_way ? 0 : c->rows;
  way w = {.from = backward ? &c->to : &c->from,
           .to = backward ? &c->back : &c->to,
           .rows = rows,
           .row_bytes = row_bytes_of(&c->spec->shape, c->dtypes[backward]),
           .dtype = c->dtypes[backward],
           .shape = c->spec->shape,
           .identical = ad_bridge_is_identical(c->spec->bridge)};
  w.shape.dim[0] = rows;
  return w;
}

/* Returns how many ranks of a side are listed. */
static int64_t ranks_listed(const ad_layout *side) {
  int64_t ranks = ad_mesh_size(side->mesh);
  return ranks <= RANKS_MAX ? ranks : 1;
}

/* ---- routes: who sends which rows to whom ---- */

/* Returns the bytes of the rank's part on this side, or 0 if the rank is not on this side. */
static json_int_t part_bytes(const way *w, const ad_layout *side, int64_t rank) {
  if (!ad_mesh_has_rank(side->mesh, rank)) return 0;
  ad_shape part = ad_layout_local_shape(side, &w->shape, rank);
  return (json_int_t)ad_shape_numel(&part) * (json_int_t)ad_dtype_size(w->dtype);
}

/* Adds the only route that a rank has on a bridge between identical layouts. Returns 0, the number of routes that are
 * left out. */
static json_int_t add_identical_route(const way *w, int64_t rank, json_t *to) {
  int64_t peer = ad_mesh_first_rank(w->to->mesh) + (rank - ad_mesh_first_rank(w->from->mesh));
  ad_span own = {0, w->rows};
  ad_layout_spans(w->from, 0, w->rows, rank, &own, 1);
  json_array_append_new(
      to, json_pack("{s:I, s:I, s:I, s:I, s:I}", "from", (json_int_t)rank, "to", (json_int_t)peer, "first_row",
                    (json_int_t)own.first, "rows", (json_int_t)own.count, "bytes", part_bytes(w, w->from, rank)));
  return 0;
}

static json_t *route_document(const way *w, int64_t rank, const ad_route *route) {
  ad_span own = {0, 0};
  ad_layout_spans(w->from, 0, w->rows, rank, &own, 1);
  json_int_t first_row = own.first + route->here, bytes = route->count * (int64_t)w->row_bytes;
  return json_pack("{s:I, s:I, s:I, s:I, s:I}", "from", (json_int_t)rank, "to", (json_int_t)route->peer, "first_row",
                   first_row, "rows", (json_int_t)route->count, "bytes", bytes);
}

/* Adds the routes of a sender, at most ROUTES_MAX. Returns the number of routes that are left out. */
static json_int_t add_routes(const way *w, int64_t rank, json_t *to) {
  ad_route routes[ROUTES_MAX];
  if (w->identical) return add_identical_route(w, rank, to);
  size_t count = ad_bridge_sends(w->from, w->to, w->rows, rank, routes, ROUTES_MAX);
  size_t listed = count < ROUTES_MAX ? count : ROUTES_MAX;
  for (size_t i = 0; i < listed; i++) json_array_append_new(to, route_document(w, rank, &routes[i]));
  return (json_int_t)count - (json_int_t)listed;
}

/* Returns the bytes of all routes. Every replica on the receiving side gets all rows. Along an axis on which the
 * received value is P (Partial), one rank gets the rows and the others have zeros, unless both layouts are identical:
 * then every rank gets its own addend. */
static json_int_t way_bytes(const way *w) {
  ad_axes once = ad_layout_sharded_axes(w->to) | (w->identical ? 0 : ad_layout_axes_of(w->to, AD_P));
  return w->rows * (json_int_t)w->row_bytes * ad_mesh_size(w->to->mesh) / ad_mesh_ranks_over(w->to->mesh, once);
}

static json_t *way_document(way w) {
  int64_t first = ad_mesh_first_rank(w.from->mesh), listed = ranks_listed(w.from);
  json_int_t left_out = 0;
  json_t *routes = json_array();
  for (int64_t i = 0; i < listed; i++) left_out += add_routes(&w, first + i, routes);
  return json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:o}", "dtype", ad_dtype_name(w.dtype), "row_bytes",
                   (json_int_t)w.row_bytes, "bytes", way_bytes(&w), "senders", (json_int_t)ad_mesh_size(w.from->mesh),
                   "senders_listed", (json_int_t)listed, "routes_left_out", left_out, "routes", routes);
}

/* ---- bytes that each rank sends and receives ---- */

/* Adds to *out the bytes of the rank's routes from and to other ranks. `find` lists all routes of the rank, including
 * those from the rank to itself. */
static ad_status moved_by(size_t (*find)(const ad_layout *, const ad_layout *, int64_t, int64_t, ad_route *, size_t),
                          way w, int64_t rank, json_int_t *out) {
  size_t count = find(w.from, w.to, w.rows, rank, NULL, 0);
  ad_route *routes;
  AD_TRY(ad_new(count, &routes));
  find(w.from, w.to, w.rows, rank, routes, count);
  for (size_t i = 0; i < count; i++)
    if (routes[i].peer != rank) *out += routes[i].count * (json_int_t)w.row_bytes;
  ad_release(routes);
  return AD_OK;
}

static ad_status add_way(way w, const char *name, int64_t rank, json_t *to) {
  json_int_t sends = w.identical ? part_bytes(&w, w.from, rank) : 0,
             receives = w.identical ? part_bytes(&w, w.to, rank) : 0;
  if (!w.identical) AD_TRY(moved_by(ad_bridge_sends, w, rank, &sends));
  if (!w.identical) AD_TRY(moved_by(ad_bridge_receives, w, rank, &receives));
  json_object_set_new(to, name, json_pack("{s:I, s:I}", "sends", sends, "receives", receives));
  return AD_OK;
}

static ad_status add_ranks(const transfer *c, const ad_layout *side, const ad_plan_pools *pools, json_t *to) {
  int64_t first = ad_mesh_first_rank(side->mesh), end = first + ranks_listed(side);
  for (int64_t rank = first; rank < end; rank++) {
    json_t *document =
        json_pack("{s:I, s:I}", "rank", (json_int_t)rank, "pool", (json_int_t)ad_plan_pool_of(pools, rank));
    json_array_append_new(to, document);
    AD_TRY(add_way(way_of(c, 0), "forward", rank, document));
    AD_TRY(add_way(way_of(c, 1), "backward", rank, document));
  }
  return AD_OK;
}

/* ---- writing a bridge's document ---- */

/* Returns the index of the module on this mesh. */
static size_t module_under(const ad_program *program, const ad_mesh *mesh) {
  size_t m = 0;
  while (m + 1 < ad_program_module_count(program) && ad_program_mesh(program, m) != mesh) m++;
  return m;
}

static json_t *side_document(const ad_layout *layout, const ad_plan_pools *pools) {
  char text[160];
  const ad_program *program = ad_plan_program(pools);
  size_t module = module_under(program, layout->mesh);
  json_t *document = json_pack("{s:s, s:s, s:I, s:s}", "module", ad_program_module(program, module)->name, "mesh",
                               ad_mesh_text(layout->mesh), "pool", (json_int_t)ad_plan_pool_under(pools, layout->mesh),
                               "layout", ad_layout_shown(layout, text, sizeof text));
  ad_plan_add_stage(program, module, document);
  return document;
}

static ad_status add_transfer(const transfer *c, const ad_plan_pools *pools, json_t *to) {
  json_t *ranks = json_array();
  json_array_append_new(
      to, json_pack("{s:o, s:o, s:I, s:I, s:s, s:o, s:o, s:o}", "from", side_document(&c->from, pools), "to",
                    side_document(&c->to, pools), "rows", (json_int_t)c->rows, "times", (json_int_t)c->times, "site",
                    c->spec->value, "forward", way_document(way_of(c, 0)), "backward", way_document(way_of(c, 1)),
                    "bytes_per_rank", ranks));
  AD_TRY(add_ranks(c, &c->from, pools, ranks));
  return ad_mesh_same_ranks(c->from.mesh, c->to.mesh) ? AD_OK : add_ranks(c, &c->to, pools, ranks);
}

/* Returns the dtype in which the value (or its gradient) is sent. A bridge between the same ranks sends nothing, so it
 * ignores the communication dtype. */
static ad_dtype dtype_of(const ad_transfer_spec *spec, const ad_program *program, int backward) {
  ad_dtype comm_dtype = backward ? spec->gradient_comm_dtype : spec->comm_dtype;
  return comm_dtype && ad_bridge_is_disjoint(spec->bridge) ? comm_dtype : ad_transfer_dtype(program, spec, backward);
}

static transfer transfer_of(const ad_transfer_spec *spec, const ad_program *program) {
  transfer c = {.spec = spec, .from = ad_bridge_from(spec->bridge), .to = ad_bridge_to(spec->bridge)};
  c.back = ad_layout_dual(&c.from);
  for (int backward = 0; backward < 2; backward++) c.dtypes[backward] = dtype_of(spec, program, backward);
  return c;
}

/* Adds an entry for each number of rows that a microbatch has. A value that is sharded by the batch has at most two
 * such numbers; any other value is transferred in full in each microbatch. */
static ad_status add_transfers(const ad_transfer_spec *spec, const ad_plan_pools *pools, json_t *to) {
  const ad_run *run = pools->list[0].run;
  transfer c = transfer_of(spec, ad_run_program(run));
  int64_t count = ad_run_recipe(run)->train.microbatches;
  int64_t parts = ad_transfer_is_split(spec) ? count : 1, least = spec->shape.dim[0] / parts;
  for (c.rows = least + 1; c.rows >= least && c.rows; c.rows--) {
    int64_t larger = spec->shape.dim[0] % parts;
    c.times = (c.rows > least ? larger : parts - larger) * (count / parts);
    if (c.times) AD_TRY(add_transfer(&c, pools, to));
  }
  return AD_OK;
}

ad_status ad_plan_add_bridges(const ad_plan_pools *pools, json_t *document) {
  const ad_program *program = ad_plan_program(pools);
  json_t *list = json_array();
  json_object_set_new(document, "bridges", list);
  for (size_t i = 0; i < ad_program_transfer_count(program); i++)
    AD_TRY(add_transfers(ad_program_transfer(program, i), pools, list));
  return AD_OK;
}
