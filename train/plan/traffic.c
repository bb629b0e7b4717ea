/* Records, at the injection points, what a step's tapes move between ranks, and makes its document. Reductions of
 * gradients and gathers of parameters are not recorded, because document.c finds them without running a step. */
#include "plan/traffic.h"

#include <stdio.h>
#include <string.h>
#include "array/array.h"
#include "base/error.h"
#include "base/memory.h"
#include "kernels/nodes.h"
#include "tensor/ring.h"
#include "mesh/mesh.h"

/* ---- listing collectives and transfers as they are executed ---- */

/* Returns 1 if a tape made the transition. Only the transitions of reducers and gathers have `what` or `names`. */
static int is_on_tape(const ad_transit *transit) { return !transit->what && !transit->names; }

/* Returns the bytes of the value that all ranks of a group have together. If groups have different parts of the value,
 * returns the mean over groups, because the part of rank 0's group may be empty. */
static size_t group_bytes(const ad_array *in, ad_axes axes) {
  const ad_mesh *mesh = in->layout.mesh;
  ad_axes sharded = ad_layout_sharded_axes(&in->layout), own = ad_layout_axes_of(&in->layout, AD_V);
  size_t full = (size_t)ad_shape_numel(&in->shape) * ad_dtype_size(in->dtype);
  return full / (size_t)ad_mesh_ranks_over(mesh, sharded & ~axes) * (size_t)ad_mesh_ranks_over(mesh, own & axes);
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

static int is_same(const ad_moved *a, const ad_moved *b) {
  return !strcmp(a->op, b->op) && a->axes == b->axes && a->mesh == b->mesh && a->dtype == b->dtype &&
         a->bytes == b->bytes && a->backward == b->backward && !strcmp(a->site, b->site);
}

/* Counts a move that was seen before, or appends a new one. */
static void list_moved(ad_traffic *to, ad_moved moved) {
  if (to->status || !moved.axes) return;
  for (size_t i = 0; i < to->moved_count; i++) {
    if (!is_same(&to->moved[i], &moved)) continue;
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

/* Counts the sums of leaves that the members of a reduction submit. */
static ad_leaf_reduction reduction_by(const ad_transit_passing *pass) {
  const ad_leaf_ranges *ranges = pass->transit->ranges;
  ad_axes axes = pass->transit->axes & ad_mesh_large(pass->in->layout.mesh);
  ad_node nodes[AD_NODES_MAX];
  ad_leaf_reduction made = {
      .op = ad_move_name(pass->transit->move), .axes = axes, .dtype = pass->in->dtype, .times = 1};
  for (int64_t i = 0; i < ad_mesh_ranks_over(pass->in->layout.mesh, axes); i++) {
    int64_t first = ranges->starts[i],
            sums = (int64_t)ad_nodes_of(first, ranges->starts[i + 1] - first, ranges->leaves, nodes);
    made.all += sums;
    if (sums > made.most) made.most = sums;
  }
  made.bytes = (size_t)made.most * ad_array_bytes(pass->in);
  return made;
}

/* Adds a reduction to the recorded one with the same operation, axes, dtype and numbers of sums, or appends it. */
static void list_reduction(ad_traffic *to, ad_leaf_reduction made) {
  if (to->status || !made.axes) return;
  for (size_t i = 0; i < to->reduction_count; i++) {
    ad_leaf_reduction *known = &to->reductions[i];
    if (known->op != made.op || known->axes != made.axes || known->dtype != made.dtype || known->most != made.most ||
        known->all != made.all)
      continue;
    known->bytes += made.bytes;
    known->times++;
    return;
  }
  to->status = ad_grow(&to->reductions, to->reduction_count, to->reduction_count + 1);
  if (!to->status) to->reductions[to->reduction_count++] = made;
}

static void list_transit(void *context, void *passing) {
  const ad_transit_passing *pass = passing;
  if (ad_comm_is_dry(pass->comm) && pass->transit->ranges) list_reduction(context, reduction_by(pass));
  if (ad_comm_is_dry(pass->comm) && ad_move_moves_bytes(pass->transit->move) && is_on_tape(pass->transit))
    list_moved(context, moved_by(pass));
}

/* Records a ring of attention: keys and values go around the group in forward, and their gradients go around in
 * backward. */
static void list_ring(void *context, void *passing) {
  const ring_passing *pass = passing;
  const ad_mesh *mesh = pass->k->layout.mesh;
  size_t wider = ad_dtype_size(ad_ring_wide(pass->ring)) / ad_dtype_size(pass->ring->dtype);
  if (!ad_comm_is_dry(pass->ring->comm)) return;
  ad_moved moved = {.op = "ring",
                    .axes = pass->ring->group.axes & ad_mesh_large(mesh),
                    .mesh = mesh,
                    .dtype = pass->ring->dtype,
                    .bytes = (pass->backward ? 2 + 2 * wider : 2) * group_bytes(pass->k, pass->ring->group.axes),
                    .backward = pass->backward,
                    .times = 1};
  snprintf(moved.site, sizeof moved.site, "%s", pass->ring->site);
  list_moved(context, moved);
}

void ad_traffic_begin(ad_traffic *traffic) {
  traffic->transit = ad_injection_set(AD_INJECT_TRANSIT, (ad_injection){list_transit, traffic});
  traffic->ring = ad_injection_set(AD_INJECT_RING, (ad_injection){list_ring, traffic});
}

void ad_traffic_end(ad_traffic *traffic) {
  ad_injection_set(AD_INJECT_TRANSIT, traffic->transit);
  ad_injection_set(AD_INJECT_RING, traffic->ring);
}

void ad_traffic_release(ad_traffic *traffic) {
  ad_release(traffic->moved);
  ad_release(traffic->reductions);
}

/* ---- writing the document of the traffic ---- */

static json_t *moved_document(const ad_moved *moved, size_t pool) {
  char axes[80];
  return json_pack("{s:s, s:s, s:I, s:s, s:I, s:s, s:I, s:s, s:I, s:s}", "op", moved->op, "mesh",
                   ad_mesh_text(moved->mesh), "pool", (json_int_t)pool, "axes",
                   ad_axes_print(moved->axes, axes, sizeof axes), "group_size",
                   (json_int_t)ad_mesh_ranks_over(moved->mesh, moved->axes), "dtype", ad_dtype_name(moved->dtype),
                   "bytes", (json_int_t)moved->bytes, "when", moved->backward ? "backward" : "forward", "times",
                   (json_int_t)moved->times, "site", moved->site);
}

void ad_traffic_list(const ad_traffic *traffic, size_t pool, json_t *to) {
  for (size_t i = 0; i < traffic->moved_count; i++) json_array_append_new(to, moved_document(&traffic->moved[i], pool));
}
