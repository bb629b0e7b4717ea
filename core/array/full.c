/* Gathers the full value on every rank, and takes a rank's part of it. Meant for checks, files and initial values,
 * where memory and time do not matter. */
#include <string.h>
#include "array/array.h"
#include "array/packed.h"
#include "array/part.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "layout/type.h"
#include "mesh/mesh.h"

/* Refuses V values, packed arrays, and a result without memory. */
static ad_status check_full(const ad_comm *comm, const ad_array *in, const ad_array *out, const char *site) {
  AD_TRY(ad_array_check(comm, in, "full", site));
  ad_axes varying = ad_layout_axes_of(&in->layout, AD_V) & ad_mesh_large(in->layout.mesh);
  if (varying) {
    return ad_fail(AD_TYPE,
                   "%s: there is no full value, because the array is V on `%s`, where each rank has a value of its "
                   "own; declare V->S(d) or V->P first",
                   site, ad_axis_name((ad_axis)__builtin_ctz(varying)));
  }
  if (ad_array_is_packed(in))
    return ad_fail(AD_INVALID,
                   "%s: the full value cannot be taken from an array that packs several values; gather such an array "
                   "with `all_gather`",
                   site);
  if (!out->data && !ad_comm_is_dry(comm) && ad_shape_numel(&in->shape)) {
    return ad_fail(AD_INVALID, "%s: the array for the full value has no memory for its elements; set its `data`", site);
  }
  return AD_OK;
}

/* Runs a collective in place on `data`, which has as many elements as this rank's local part. */
static ad_status run_in_place(ad_comm *comm, const ad_array *in, ad_collective_op op, ad_axes axes, void *data,
                              const char *site) {
  ad_collective call = {
      .size = sizeof call, .op = op, .group = ad_array_group(comm, in, axes), .in = data, .out = data, .site = site};
  call.count = ad_array_numel(in);
  call.dtype = in->dtype;
  return ad_comm_run(comm, &call);
}

/* Copies the gathered parts of all members to their positions in the full value. */
static void place_parts(const ad_array *in, const ad_group *group, const char *gathered, void *out) {
  ad_layout uncut = ad_layout_all(in->layout.mesh, AD_R);
  ad_part full, part;
  ad_part_of(&uncut, &in->shape, ad_group_rank(group, 0), &full);
  for (int64_t member = 0; member < ad_group_size(group); member++) {
    ad_part_of(&in->layout, &in->shape, ad_group_rank(group, member), &part);
    ad_part_copy(out, &full, gathered, &part, &part, ad_dtype_size(in->dtype));
    gathered += ad_part_numel(&part) * ad_dtype_size(in->dtype);
  }
}

/* Gathers the parts of all members into the full value `out`. The other buffers are working memory: `counts` for the
 * members' sizes, `local` for this rank's part, `gathered` for all parts. */
static ad_status gather_parts(ad_comm *comm, const ad_array *in, const ad_group *group, size_t *counts, char *local,
                              char *gathered, const char *site, void *out) {
  ad_copy(local, in->data, ad_array_bytes(in));
  AD_TRY(run_in_place(comm, in, AD_BROADCAST, ad_layout_same_axes(&in->layout), local, site));
  AD_TRY(run_in_place(comm, in, AD_ALL_REDUCE, ad_layout_axes_of(&in->layout, AD_P), local, site));
  for (int64_t member = 0; member < ad_group_size(group); member++) {
    ad_shape part = ad_layout_local_shape(&in->layout, &in->shape, ad_group_rank(group, member));
    counts[member] = (size_t)ad_shape_numel(&part);
  }
  ad_collective call = {.size = sizeof call,
                        .op = AD_ALL_GATHER,
                        .group = *group,
                        .in = local,
                        .out = gathered,
                        .counts = counts,
                        .site = site};
  call.dtype = in->dtype;
  AD_TRY(ad_comm_run(comm, &call));
  place_parts(in, group, gathered, out);
  return AD_OK;
}

ad_status ad_array_full_at(ad_comm *comm, const ad_array *in, ad_array *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out);
  AD_NEED(in->layout.mesh);
  AD_TRY(check_full(comm, in, out, site));
  ad_layout uncut = ad_layout_all(in->layout.mesh, AD_R);
  ad_array full = ad_array_describe(comm, in->dtype, &in->shape, &uncut);
  full.scale = in->scale;
  full.data = out->data;
  if (!ad_comm_is_dry(comm)) {
    ad_group group = ad_array_group(comm, in, ad_layout_sharded_axes(&in->layout));
    size_t counts = ad_padded((size_t)ad_group_size(&group) * sizeof(size_t)), local = ad_padded(ad_array_bytes(in));
    void *memory;
    AD_TRY(ad_comm_alloc(comm, counts + local + ad_padded(ad_array_bytes(&full)), &memory));
    char *parts = (char *)memory + counts;
    ad_status status = gather_parts(comm, in, &group, memory, parts, parts + local, site, out->data);
    ad_comm_free(comm, memory);
    if (status) return status;
  }
  *out = full;
  return AD_OK;
}

/* ---- a rank's part of the full value ---- */

/* Refuses `to` if it is V or packed, because it is then no part of a full value. Refuses `full` if it is P, has only a
 * part of the elements, or has another shape, dtype or scale than `to`. */
static ad_status check_from_full(const ad_comm *comm, const ad_array *full, const ad_array *to, const char *site) {
  char have[96], need[96];
  AD_TRY(ad_array_check(comm, to, "from_full", site));
  ad_axes varying = ad_layout_axes_of(&to->layout, AD_V) & ad_mesh_large(to->layout.mesh);
  if (varying)
    return ad_fail(AD_TYPE,
                   "%s: `from_full` cannot fill an array that is V on `%s`, where each rank has a value of its own; "
                   "give the array a layout with S(d) or P on this axis",
                   site, ad_axis_name((ad_axis)__builtin_ctz(varying)));
  if (ad_array_is_packed(to))
    return ad_fail(AD_INVALID,
                   "%s: `from_full` cannot fill an array that packs several values; put each value into an array of "
                   "its own, and fill these arrays one by one",
                   site);
  ad_axes addend = ad_layout_axes_of(&full->layout, AD_P) & (full->layout.mesh ? ad_mesh_large(full->layout.mesh) : 0);
  if (addend)
    return ad_fail(AD_TYPE,
                   "%s: `from_full` got an addend, which is P on `%s`; sum it first, for example by ad_array_full",
                   site, ad_axis_name((ad_axis)__builtin_ctz(addend)));
  if (!ad_shape_equal(&full->shape, &to->shape) || !ad_shape_equal(&full->local, &to->shape))
    return ad_fail(AD_INVALID,
                   "%s: `from_full` got a full value of which this rank has shape %s, but every rank must have the "
                   "full shape %s; give every rank all elements",
                   site, ad_shape_print(&full->local, have, sizeof have),
                   ad_shape_print(&to->shape, need, sizeof need));
  if (full->dtype != to->dtype || full->scale != to->scale)
    return ad_fail(AD_INVALID,
                   "%s: `from_full` got a full value of %s with scale %d, but the array has %s with scale %d; convert "
                   "the full value to the dtype and scale of the array first",
                   site, ad_dtype_name(full->dtype), full->scale, ad_dtype_name(to->dtype), to->scale);
  if (!full->data && to->data && ad_array_numel(to))
    return ad_fail(AD_INVALID, "%s: `from_full` got a full value without memory; set its `data`", site);
  return AD_OK;
}

ad_status ad_array_from_full_at(const ad_comm *comm, const ad_array *full, ad_array *to, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, full, to);
  AD_NEED(to->layout.mesh);
  AD_TRY(check_from_full(comm, full, to, site));
  if (!to->data || !ad_array_numel(to)) return AD_OK;
  ad_group addends = ad_array_group(comm, to, ad_layout_axes_of(&to->layout, AD_P));
  if (ad_group_index(&addends, ad_comm_rank(comm))) {
    memset(to->data, 0, ad_array_bytes(to));
    return AD_OK;
  }
  ad_layout uncut = ad_layout_all(to->layout.mesh, AD_R);
  ad_part from, part;
  ad_part_of(&uncut, &to->shape, ad_comm_rank(comm), &from);
  ad_part_of(&to->layout, &to->shape, ad_comm_rank(comm), &part);
  ad_part_copy(to->data, &part, full->data, &from, &part, ad_dtype_size(to->dtype));
  return AD_OK;
}

/* ---- ranks that hold no part of the value ---- */

enum { HEADER = 3 + AD_DIMS_MAX }; /* dtype, scale, number of dimensions, and the sizes of the dimensions */

/* Broadcasts `count` elements from rank `root` to all ranks of the group. */
static ad_status broadcast_from(ad_comm *comm, const ad_group *all, int64_t root, ad_dtype dtype, size_t count,
                                void *data, const char *site) {
  ad_collective call = {.size = sizeof call,
                        .op = AD_BROADCAST,
                        .group = *all,
                        .in = data,
                        .out = data,
                        .count = count,
                        .dtype = dtype,
                        .site = site};
  call.root = ad_group_index(all, root);
  return ad_comm_run(comm, &call);
}

static void put_header(const ad_array *array, int64_t header[HEADER]) {
  header[0] = array->dtype;
  header[1] = array->scale;
  header[2] = array->shape.ndim;
  for (int i = 0; i < array->shape.ndim; i++) header[3 + i] = array->shape.dim[i];
}

static void take_header(const ad_comm *comm, const ad_mesh *mesh, const int64_t header[HEADER], ad_array *out) {
  ad_layout uncut = ad_layout_all(mesh, AD_R);
  ad_shape shape = {.ndim = (int)header[2]};
  void *data = out->data;
  for (int i = 0; i < shape.ndim; i++) shape.dim[i] = header[3 + i];
  *out = ad_array_describe(comm, (ad_dtype)header[0], &shape, &uncut);
  out->local = shape; /* this rank receives the full value, although it is not on the mesh */
  out->scale = (int)header[1];
  out->data = data;
}

/* Builds the full value on the mesh's ranks; then the mesh's first rank broadcasts dtype and shape, and after these the
 * full value, for the ranks that are not on the mesh. */
ad_status ad_array_full_for_at(ad_comm *comm, const ad_group *all, const ad_mesh *mesh, const ad_array *in,
                               ad_array *out, const char *site) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, all, mesh, out);
  int64_t header[HEADER] = {0}, first = ad_mesh_first_rank(mesh);
  int is_here = ad_mesh_has_rank(mesh, ad_comm_rank(comm));
  if (is_here) AD_NEED(in);
  if (is_here) AD_TRY(ad_array_full_at(comm, in, out, site));
  if (ad_mesh_size(mesh) == ad_group_size(all) || ad_comm_is_dry(comm)) return AD_OK;
  if (is_here) put_header(out, header);
  AD_TRY(broadcast_from(comm, all, first, AD_I64, HEADER, header, site));
  if (!is_here) take_header(comm, mesh, header, out);
  return broadcast_from(comm, all, first, out->dtype, ad_array_numel(out), out->data, site);
}
