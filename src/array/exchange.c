/* The entry all_to_all V->V of law 2: what goes where is in counts of rows, not in types. The other transitions are in
 * move.c. */
#include "array/array.h"
#include "array/packed.h"
#include "array/transit.h"
#include "base/error.h"
#include "comm/scratch.h"
#include "layout/nest.h"

static size_t sum_of(const size_t *rows, int64_t members) {
  size_t sum = 0;
  for (int64_t member = 0; member < members; member++) sum += rows[member];
  return sum;
}

/* As with a declaration, the whole is described as if all parts were as large as this one. */
static ad_array describe(const ad_array *in, const ad_layout *layout, size_t rows) {
  ad_array out = *in;
  out.layout = *layout;
  out.local.dim[0] = (int64_t)rows;
  out.shape.dim[0] = (int64_t)rows * ad_mesh_ranks_over(layout->mesh, ad_layout_cutting(layout, 0));
  out.data = NULL;
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

static void count_elements(const ad_array *array, const size_t *rows, int64_t members, size_t *out) {
  size_t row = ad_segment_of(&array->local).row;
  for (int64_t member = 0; member < members; member++) out[member] = rows[member] * row;
}

ad_status ad_exchange_after(const ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) {
  const char *site = transit->site;
  ad_layout layout;
  AD_TRY(ad_layout_after(&in->layout, AD_MOVE_ALL_TO_ALL, transit->axes, AD_V, in->shape.ndim, site, &layout));
  AD_TRY(ad_array_check(comm, in, "all_to_all", site));
  if (ad_array_is_packed(in))
    return ad_fail(AD_INVALID, "%s: all_to_all: values that are packed one after another have no rows in common", site);
  ad_group group = ad_array_group(comm, in, transit->axes);
  int64_t members = ad_group_size(&group);
  AD_TRY(check_rows(in, transit->send_rows, members, site));
  *out = describe(in, &layout, sum_of(transit->receive_rows, members));
  return AD_OK;
}

ad_status ad_exchange_run(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) {
  ad_group group = ad_array_group(comm, in, transit->axes);
  int64_t members = ad_group_size(&group);
  void *scratch;
  if (in->data && in->data == out->data)
    return ad_fail(AD_INVALID, "%s: all_to_all: what is received needs memory of its own, not that of what is sent",
                   transit->site);
  AD_TRY(ad_comm_scratch(comm, 2 * (size_t)members * sizeof(size_t), &scratch));
  size_t *send = scratch, *receive = send + members;
  count_elements(in, transit->send_rows, members, send);
  count_elements(out, transit->receive_rows, members, receive);
  ad_collective call = {.op = AD_ALL_TO_ALL, .group = group, .in = in->data, .out = out->data, .dtype = in->dtype};
  call.counts = send;
  call.receive_counts = receive;
  call.site = transit->site;
  return ad_comm_run(comm, &call);
}

ad_status ad_array_exchange(ad_comm *comm, const ad_array *in, ad_axes axes, const size_t *send_rows,
                            const size_t *receive_rows, const char *site, ad_array *out) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, send_rows, receive_rows, out);
  AD_NEED(in->layout.mesh);
  ad_transit transit = {.move = AD_MOVE_ALL_TO_ALL, .axes = axes, .to = AD_V, .site = site};
  transit.send_rows = send_rows;
  transit.receive_rows = receive_rows;
  ad_array after;
  AD_TRY(ad_exchange_after(comm, &transit, in, &after));
  after.data = out->data;
  AD_TRY(ad_transit_run(comm, &transit, in, &after));
  *out = after;
  return AD_OK;
}
