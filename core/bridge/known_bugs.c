/* The known bugs of bridges, as mutations. Bridges themselves use nothing from this file. */
#include "bridge/known_bugs.h"

#include <string.h>
#include "array/array.h"
#include "bridge/route.h"
#include "mesh/mesh.h"

static void fire(void *context) { ((ad_known_bug_scene *)context)->fired = 1; }

/* ---- on which bridges a known bug changes something ---- */

static int64_t parts_of(const ad_layout *layout) {
  return ad_mesh_ranks_over(layout->mesh, ad_layout_sharded_axes(layout));
}

static int is_backward(const ad_route_passing *at) { return at->from == &at->bridge->to; }

/* Returns the number of slices into which the layout `sharded` divides one part of the layout `full`; 1 if the part is
 * not divided evenly. */
static int64_t slices_of(const ad_layout *full, const ad_layout *sharded, int64_t rows) {
  int64_t slices = parts_of(sharded) / parts_of(full);
  return parts_of(sharded) % parts_of(full) || rows % parts_of(sharded) || !rows ? 1 : slices;
}

/* Returns 1 if each part of the sending side is divided into slices for the receiving side. */
static int is_sliced(const ad_route_passing *at) { return slices_of(at->from, at->to, at->rows) > 1; }
/* Returns 1 if each part of the receiving side is put together from slices of the sending side. */
static int brings_together(const ad_route_passing *at) { return slices_of(at->to, at->from, at->rows) > 1; }

static int has_cp(const ad_layout *layout) { return ad_mesh_axis_size(layout->mesh, AD_CP) > 1; }

/* Returns 1 if slices of a gradient are put together, because the batch was divided into slices in the forward pass. */
static int gathers(const ad_route_passing *at) { return is_backward(at) && brings_together(at); }
static int gathers_on_cp(const ad_route_passing *at) {
  return gathers(at) && has_cp(at->from) && !at->bridge->disjoint;
}

/* slice_of returns the number of the rank's slice within its part. misread_slice_of returns the number that a bug
 * computes, as if dp were the fastest axis of every mesh. */
static int64_t slice_of(const ad_layout *sharded, int64_t rows, int64_t rank, int64_t slices) {
  ad_span own = {0, 1};
  ad_layout_spans(sharded, 0, rows, rank, &own, 1);
  return own.first / own.count % slices;
}
static int64_t misread_slice_of(const ad_layout *sharded, int64_t rank, int64_t slices) {
  return (rank - ad_mesh_first_rank(sharded->mesh)) % slices;
}

/* Returns 1 if slice_of and misread_slice_of differ on some rank. */
static int reads_another_slice(const ad_route_passing *at) {
  int64_t slices = slices_of(at->from, at->to, at->rows), first = ad_mesh_first_rank(at->to->mesh);
  for (int64_t rank = first; rank < first + ad_mesh_size(at->to->mesh); rank++)
    if (slice_of(at->to, at->rows, rank, slices) != misread_slice_of(at->to, rank, slices)) return 1;
  return 0;
}

ad_needs ad_bridge_known_bugs_show(const ad_route_passing *at) {
  ad_needs shown = 0;
  if (is_sliced(at) && reads_another_slice(at)) shown |= AD_NEED_SLICES_OUT_OF_ORDER;
  if (is_sliced(at) && !is_backward(at) && has_cp(at->to)) shown |= AD_NEED_SLICES_ON_CP;
  if (gathers(at)) shown |= AD_NEED_SLICES_GATHERED;
  return gathers_on_cp(at) ? shown | AD_NEED_SLICES_GATHERED_ON_CP : shown;
}

/* ---- the known bugs, one function each, and their list ---- */

/* Changes a route so that another slice of the part is sent, and notes that the bug took effect if the slice
 * differs. */
static void take_slice(ad_known_bug_scene *scene, ad_route *route, int64_t slice) {
  if (route->here != slice * route->count) fire(scene);
  route->here = slice * route->count;
}

/* Known bug: slices are looked up only among the ranks at position 0 on cp; a rank that is not among them gets the
 * first slice. */
static void look_up_first_on_cp(void *context, void *passing) {
  ad_route_passing *at = passing;
  if (is_backward(at) || !is_sliced(at)) return;
  for (size_t i = 0; i < at->sends; i++)
    if (ad_mesh_position(at->to->mesh, at->routes[i].peer, AD_CP)) take_slice(context, &at->routes[i], 0);
}

/* Known bug: the position on dp is computed from the rank as if dp were the fastest axis. */
static void read_dp_as_fastest(void *context, void *passing) {
  ad_route_passing *at = passing;
  if (!is_sliced(at)) return;
  int64_t slices = slices_of(at->from, at->to, at->rows);
  for (size_t i = 0; i < at->sends; i++)
    take_slice(context, &at->routes[i], misread_slice_of(at->to, at->routes[i].peer, slices));
}

/* Known bug: the groups in which slices are put together include all positions on cp, and slice i comes from member
 * i. */
static void pool_over_cp(void *context, void *passing) {
  ad_route_passing *at = passing;
  ad_axes axes = ad_layout_sharded_axes(at->from) | AD_AXES(AD_CP);
  if (!gathers_on_cp(at)) return;
  ad_group pooled = ad_mesh_group(at->from->mesh, axes, ad_comm_rank(at->bridge->comm));
  for (size_t i = 0; i < at->count; i++)
    at->routes[i].peer = ad_group_rank(&pooled, ad_group_index(&at->group, at->routes[i].peer));
  at->group = pooled;
  fire(context);
}

/* Known bug: only this rank's own slice of the gradient comes back; the slices of all other ranks are zeros. */
static void leave_zeros(void *context, void *passing) {
  ad_route_passing *at = passing;
  int64_t own = ad_comm_rank(at->bridge->comm);
  if (!gathers(at)) return;
  if (at->out && at->out->data) memset(at->out->data, 0, ad_array_bytes(at->out));
  for (size_t i = 0; i < at->count; i++)
    if (at->routes[i].peer != own) at->routes[i].count = 0;
  fire(context);
}

static const ad_known_bug bugs[] = {
    {.name = "slice-of-first-on-cp",
     .words = "a rank that is not the first on cp takes the first slice of the batch, not its own",
     .needs = AD_NEED_TOKENS | AD_NEED_SLICES_ON_CP,
     .at = {{AD_INJECT_ROUTES, look_up_first_on_cp}}},
    {.name = "slice-by-wrong-order-of-axes",
     .words = "a rank computes its slice of the batch as if dp were the fastest axis",
     .needs = AD_NEED_TOKENS | AD_NEED_SLICES_OUT_OF_ORDER,
     .at = {{AD_INJECT_ROUTES, read_dp_as_fastest}}},
    {.name = "slices-gathered-across-cp",
     .words = "slices of a gradient are put together in groups that contain all positions on cp",
     .needs = AD_NEED_TOKENS | AD_NEED_SLICES_GATHERED_ON_CP,
     .at = {{AD_INJECT_ROUTES, pool_over_cp}}},
    {.name = "zeros-for-slices-of-others",
     .words = "the gradient of a slice goes back with zeros where those of other slices are due",
     .needs = AD_NEED_TOKENS | AD_NEED_SLICES_GATHERED,
     .at = {{AD_INJECT_ROUTES, leave_zeros}}},
};

const ad_known_bug *ad_bridge_known_bugs(size_t *count) {
  *count = sizeof bugs / sizeof *bugs;
  return bugs;
}
