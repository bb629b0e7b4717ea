/* The transition all_to_all V->V of law 2. Here counts of rows determine which rows go to which rank; types alone do
 * not. transit.c executes the other transitions. */
#include "array/array.h"
#include "array/packed.h"
#include "array/transit.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "comm/scratch.h"
#include "layout/nest.h"
#include "mesh/mesh.h"

static size_t sum_of(const size_t *rows, int64_t members) {
  size_t sum = 0;
  for (int64_t member = 0; member < members; member++) sum += rows[member];
  return sum;
}

/* Describes the result. The full shape is unknown, as for the declarations in after.c; shape.dim is set as if all parts
 * were as large as this rank's. */
static ad_array describe_result(const ad_array *in, const ad_layout *layout, size_t rows) {
  ad_array out = *in;
  out.layout = *layout;
  out.local.dim[0] = (int64_t)rows;
  out.shape.dim[0] = (int64_t)rows * ad_mesh_ranks_over(layout->mesh, ad_layout_axes_sharding(layout, 0));
  out.data = NULL;
  return out;
}

static ad_status check_rows(const ad_array *in, const size_t *send_rows, int64_t members, const char *site) {
  size_t rows = sum_of(send_rows, members);
  if (in->shape.ndim && rows == (size_t)in->local.dim[0]) return AD_OK;
  char local[96];
  return ad_fail(AD_INVALID,
                 "%s: the counts of `all_to_all` send %zu rows to %lld ranks, but the local part has shape %s; give "
                 "counts that add up to the first dimension of that shape",
                 site, rows, (long long)members, ad_shape_print(&in->local, local, sizeof local));
}

ad_status ad_exchange_after(const ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) {
  const char *site = transit->site;
  ad_layout layout;
  AD_TRY(ad_layout_after_at(&in->layout, AD_MOVE_ALL_TO_ALL, transit->axes, AD_V, in->shape.ndim, &layout, site));
  AD_TRY(ad_array_check(comm, in, "all_to_all", site));
  if (ad_array_is_packed(in))
    return ad_fail(AD_INVALID,
                   "%s: `all_to_all` got an array that packs several values, whose rows cannot be exchanged together; "
                   "put each value into an array of its own",
                   site);
  ad_group group = ad_array_group(comm, in, transit->axes);
  int64_t members = ad_group_size(&group);
  AD_TRY(check_rows(in, transit->send_rows, members, site));
  *out = describe_result(in, &layout, sum_of(transit->receive_rows, members));
  return AD_OK;
}

/* ---- sending and receiving rows ---- */

/* One side of an exchange: the rows that this rank sends, or the rows that it receives. */
typedef struct row_side {
  ad_row_order order;
  const size_t *rows; /* for each member, the number of rows that are sent to it, or received from it */
  /* members: number of members; own: this rank's index among them */
  size_t members, own;
  char *data;
} row_side;

static size_t runs_of(const row_side *side) { return ad_row_runs(&side->order, side->members); }

/* Adds a message for each run of rows that another member sends or receives. copy_own copies the runs that stay on this
 * rank. */
static void add_messages(const row_side *side, int sends, const ad_array *like, ad_collective *call,
                         ad_message *messages) {
  size_t row = ad_segment_of(&like->local).row, element = ad_dtype_size(like->dtype);
  char *at = side->data;
  for (size_t i = 0; i < runs_of(side); i++) {
    ad_row_run run = ad_row_run_at(&side->order, side->rows, i);
    ad_message message = {.peer = (int64_t)run.member, .count = run.rows * row};
    if (sends)
      message.send = at;
    else
      message.receive = at;
    if (run.rows && run.member != side->own) messages[call->message_count++] = message;
    at += run.rows * row * element;
  }
}

/* A cursor over the runs of rows that this rank sends to itself: number of the next run of the buffer; first row and
 * number of rows of the current run. */
typedef struct own_run {
  size_t next, row, rows;
} own_run;

/* Moves the cursor to the next run of rows that this rank sends to itself. Returns 0 if there is none. */
static int find_own(const row_side *side, own_run *at) {
  at->row += at->rows;
  for (; at->next < runs_of(side); at->row += at->rows) {
    ad_row_run run = ad_row_run_at(&side->order, side->rows, at->next++);
    at->rows = run.rows;
    if (run.member == side->own) return 1;
  }
  return 0;
}

/* Copies the rows that this rank sends to itself. */
static void copy_own(const row_side *from, const row_side *to, size_t row_bytes) {
  own_run given = {0}, taken = {0};
  if (from->data == to->data) return;
  while (find_own(from, &given) && find_own(to, &taken))
    ad_copy(to->data + taken.row * row_bytes, from->data + given.row * row_bytes, given.rows * row_bytes);
}

ad_status ad_exchange_run(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) {
  ad_group group = ad_array_group(comm, in, transit->axes);
  size_t members = (size_t)ad_group_size(&group), own = (size_t)ad_group_index(&group, ad_comm_rank(comm));
  row_side from = {transit->sent, transit->send_rows, members, own, in->data};
  row_side to = {transit->received, transit->receive_rows, members, own, out->data};
  ad_collective call = {
      .size = sizeof call, .op = AD_EXCHANGE, .group = group, .dtype = in->dtype, .site = transit->site};
  ad_request request = {0};
  void *messages;
  if (in->data && in->data == out->data && members > 1)
    return ad_fail(AD_INVALID,
                   "%s: `all_to_all` got the same memory for the sent rows and the received rows; give the received "
                   "rows memory of their own",
                   transit->site);
  if (transit->send_rows[own] != transit->receive_rows[own])
    return ad_fail(AD_INVALID,
                   "%s: `all_to_all` on this rank sends %zu rows to itself, but expects %zu rows from itself; give the "
                   "same number of rows in `send_rows` and `receive_rows` for this rank",
                   transit->site, transit->send_rows[own], transit->receive_rows[own]);
  AD_TRY(ad_comm_scratch(comm, (runs_of(&from) + runs_of(&to)) * sizeof(ad_message), &messages));
  call.messages = messages;
  add_messages(&from, 1, in, &call, messages);
  add_messages(&to, 0, in, &call, messages);
  AD_TRY(ad_comm_post(comm, &call, &request));
  copy_own(&from, &to, ad_segment_of(&in->local).row * ad_dtype_size(in->dtype));
  return ad_comm_wait(comm, &request);
}
