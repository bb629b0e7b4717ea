/* The entry all_to_all V->V of law 2: what goes where is in counts of rows, not in types. The other transitions are in
 * move.c. */
#include "array/array.h"
#include "base/error.h"
#include "comm/scratch.h"

static size_t sum_of(const size_t *rows, int64_t members) {
  size_t sum = 0;
  for (int64_t member = 0; member < members; member++) sum += rows[member];
  return sum;
}

static int64_t ranks_cutting_rows(const ad_layout *layout) {
  int64_t ranks = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    if (ad_type_dim(layout->type[axis]) == 0) ranks *= ad_mesh_axis_size(layout->mesh, (ad_axis)axis);
  }
  return ranks;
}

/* As with a declaration, the whole is described as if all parts were as large as this one. */
static ad_array describe(const ad_array *in, const ad_layout *layout, size_t rows, void *data) {
  ad_array out = *in;
  out.layout = *layout;
  out.local.dim[0] = (int64_t)rows;
  out.shape.dim[0] = (int64_t)rows * ranks_cutting_rows(layout);
  out.data = data;
  return out;
}

static ad_status check_rows(const ad_array *in, const size_t *send_rows, int64_t members, const char *site) {
  size_t rows = sum_of(send_rows, members);
  if (in->shape.ndim && rows == (size_t)in->local.dim[0]) return AD_OK;
  char local[96];
  return ad_fail(AD_INVALID,
                 "%s: all_to_all: the counts send %zu rows to %lld members, but the local part is %s; they must add "
                 "up to its first dimension",
                 site, rows, (long long)members, ad_shape_print(&in->local, local, sizeof local));
}

static ad_status check_memory(const ad_comm *comm, const ad_array *in, const ad_array *out, const char *site) {
  AD_TRY(ad_array_check(comm, out, "all_to_all", site));
  if (!in->data || in->data != out->data) return AD_OK;
  return ad_fail(AD_INVALID, "%s: all_to_all: what is received needs memory of its own, not that of what is sent",
                 site);
}

static void count_elements(const ad_array *array, const size_t *rows, int64_t members, size_t *out) {
  size_t row = 1;
  for (int dim = 1; dim < array->local.ndim; dim++) row *= (size_t)array->local.dim[dim];
  for (int64_t member = 0; member < members; member++) out[member] = rows[member] * row;
}

static ad_status communicate(ad_comm *comm, const ad_array *in, const ad_group *group, const size_t *send_rows,
                             const size_t *receive_rows, const char *site, const ad_array *out) {
  int64_t members = ad_group_size(group);
  void *scratch;
  AD_TRY(ad_comm_scratch(comm, 2 * (size_t)members * sizeof(size_t), &scratch));
  size_t *send = scratch, *receive = send + members;
  count_elements(in, send_rows, members, send);
  count_elements(out, receive_rows, members, receive);
  ad_collective call = {.op = AD_ALL_TO_ALL, .group = *group, .in = in->data, .out = out->data, .dtype = in->dtype};
  call.counts = send;
  call.receive_counts = receive;
  call.site = site;
  return ad_comm_run(comm, &call);
}

ad_status ad_array_exchange(ad_comm *comm, const ad_array *in, ad_axes axes, const size_t *send_rows,
                            const size_t *receive_rows, const char *site, ad_array *out) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, send_rows, receive_rows, out);
  AD_NEED(in->layout.mesh);
  ad_layout layout;
  AD_TRY(ad_layout_after(&in->layout, AD_MOVE_ALL_TO_ALL, axes, AD_V, in->shape.ndim, site, &layout));
  AD_TRY(ad_array_check(comm, in, "all_to_all", site));
  ad_group group = ad_array_group(comm, in, axes);
  int64_t members = ad_group_size(&group);
  AD_TRY(check_rows(in, send_rows, members, site));
  ad_array after = describe(in, &layout, sum_of(receive_rows, members), out->data);
  AD_TRY(check_memory(comm, in, &after, site));
  if (!ad_comm_is_dry(comm)) AD_TRY(communicate(comm, in, &group, send_rows, receive_rows, site, &after));
  *out = after;
  return AD_OK;
}
