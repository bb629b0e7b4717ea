/* Law 2 executed on arrays. Each transition is one collective or one local copy; where the blocks of a collective are
 * no runs of the buffer (another dimension than the first, zigzag cuts), they are packed. Which transitions exist is in
 * layout/. */
#include "array/array.h"
#include "array/part.h"
#include "base/error.h"
#include "base/kernels.h"
#include "comm/scratch.h"

/* ---- what the result looks like ---- */

static int64_t ranks_cutting(const ad_layout *layout, ad_axes axes, int dim) {
  int64_t ranks = 1;
  for (int axis = 0; axis < AD_AXIS_COUNT; axis++) {
    int counts = (axes & AD_AXES(axis)) && ad_type_dim(layout->type[axis]) == dim;
    if (counts) ranks *= ad_mesh_axis_size(layout->mesh, (ad_axis)axis);
  }
  return ranks;
}

/* A declaration keeps the local part, so it is the whole value whose shape changes. Where parts are uneven no rank can
 * know the whole; it is described as if all parts were as large as this one. */
static ad_shape declared_shape(const ad_array *in, const ad_layout *after, ad_axes axes) {
  ad_shape shape = in->shape;
  for (int dim = 0; dim < shape.ndim; dim++) {
    int changes = ranks_cutting(&in->layout, axes, dim) > 1 || ranks_cutting(after, axes, dim) > 1;
    if (changes) shape.dim[dim] = in->local.dim[dim] * ranks_cutting(after, AD_AXES_ALL, dim);
  }
  return shape;
}

ad_status ad_array_after(const ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                         const char *site, ad_array *out) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out);
  AD_NEED(in->layout.mesh);
  ad_layout layout;
  AD_TRY(ad_layout_after(&in->layout, move, axes, to, in->shape.ndim, site, &layout));
  if (move == AD_MOVE_ALL_TO_ALL && to == AD_V) {
    return ad_fail(AD_INVALID,
                   "%s: all_to_all V->V needs the rows for each member, which the types do not tell; use "
                   "ad_array_exchange",
                   site);
  }
  ad_shape shape = move == AD_MOVE_DECLARE ? declared_shape(in, &layout, axes) : in->shape;
  ad_array after = ad_array_describe(comm, in->dtype, &shape, &layout);
  after.scale = in->scale;
  *out = after;
  return AD_OK;
}

/* ---- collectives ---- */

/* A collective on parts: `send` lists what each member gets, `receive` what each member gives. */
typedef struct transfer {
  ad_comm *comm;
  const ad_array *in;
  ad_array *out;
  ad_part in_part, out_part;
  ad_collective call;
  int64_t members;
  // In the comm's scratch memory: counts, then the packed blocks where they are needed.
  size_t *send_counts, *receive_counts;
  char *send, *receive;  // NULL: the array itself
} transfer;

static void send_region(const transfer *work, int64_t member, ad_part *out) {
  ad_part theirs;
  ad_part_of(&work->out->layout, &work->out->shape, ad_group_rank(&work->call.group, member), &theirs);
  ad_part_intersect(&work->in_part, &theirs, out);
}

static void receive_region(const transfer *work, int64_t member, ad_part *out) {
  ad_part theirs;
  ad_part_of(&work->in->layout, &work->in->shape, ad_group_rank(&work->call.group, member), &theirs);
  ad_part_intersect(&work->out_part, &theirs, out);
}

static int sends_blocks(const transfer *work) { return work->call.op != AD_ALL_GATHER; }
static int receives_blocks(const transfer *work) { return work->call.op != AD_REDUCE_SCATTER; }

/* 1 if the members' blocks, one after another, are the buffer itself. */
static int are_runs(const transfer *work, void (*region_of)(const transfer *, int64_t, ad_part *),
                    const ad_part *part) {
  size_t offset = 0;
  for (int64_t member = 0; member < work->members; member++) {
    ad_part region;
    region_of(work, member, &region);
    if (!ad_part_is_run(part, &region, offset)) return 0;
    offset += ad_part_numel(&region);
  }
  return 1;
}

static size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* Takes scratch memory for counts and, where `packs` allows it, for packed blocks. */
static ad_status take_scratch(transfer *work, int packs, const char *site) {
  int pack_send = sends_blocks(work) && !are_runs(work, send_region, &work->in_part);
  int same_memory = work->call.op == AD_ALL_TO_ALL && work->in->data == work->out->data;
  int pack_receive = receives_blocks(work) && (same_memory || !are_runs(work, receive_region, &work->out_part));
  if (!packs && (pack_send || pack_receive)) {
    return ad_fail(AD_INVALID,
                   "%s: post: the blocks are no runs of the buffer, which only a cut of dimension 0 gives; use move",
                   site);
  }
  size_t counts = padded((size_t)work->members * sizeof(size_t));
  size_t send = pack_send ? padded(ad_array_bytes(work->in)) : 0;
  size_t receive = pack_receive ? padded(ad_array_bytes(work->out)) : 0;
  void *scratch;
  AD_TRY(ad_comm_scratch(work->comm, 2 * counts + send + receive, &scratch));
  char *at = scratch;
  work->send_counts = (size_t *)(void *)at;
  work->receive_counts = (size_t *)(void *)(at + counts);
  if (pack_send) work->send = at + 2 * counts;
  if (pack_receive) work->receive = at + 2 * counts + send;
  return AD_OK;
}

static void pack(transfer *work) {
  size_t element = ad_dtype_size(work->in->dtype);
  char *at = work->send;
  for (int64_t member = 0; member < work->members; member++) {
    ad_part region;
    send_region(work, member, &region);
    work->send_counts[member] = ad_part_numel(&region);
    if (!at) continue;
    ad_part_copy(at, &region, work->in->data, &work->in_part, &region, element);
    at += work->send_counts[member] * element;
  }
}

static void count_received(transfer *work) {
  for (int64_t member = 0; member < work->members; member++) {
    ad_part region;
    receive_region(work, member, &region);
    work->receive_counts[member] = ad_part_numel(&region);
  }
}

static void unpack(transfer *work) {
  size_t element = ad_dtype_size(work->in->dtype);
  const char *at = work->receive;
  for (int64_t member = 0; at && member < work->members; member++) {
    ad_part region;
    receive_region(work, member, &region);
    ad_part_copy(work->out->data, &work->out_part, at, &region, &region, element);
    at += work->receive_counts[member] * element;
  }
}

static void prepare_blocks(transfer *work) {
  if (sends_blocks(work)) pack(work);
  if (receives_blocks(work)) count_received(work);
  ad_collective *call = &work->call;
  call->counts = sends_blocks(work) ? work->send_counts : work->receive_counts;
  if (call->op == AD_ALL_TO_ALL) call->receive_counts = work->receive_counts;
  if (work->send) call->in = work->send;
  if (work->receive) call->out = work->receive;
}

static int has_blocks(ad_move move) {
  return move == AD_MOVE_REDUCE_SCATTER || move == AD_MOVE_ALL_GATHER || move == AD_MOVE_ALL_TO_ALL;
}

static ad_collective_op op_of(ad_move move) {
  if (move == AD_MOVE_REDUCE_SCATTER) return AD_REDUCE_SCATTER;
  if (move == AD_MOVE_ALL_GATHER) return AD_ALL_GATHER;
  return move == AD_MOVE_ALL_TO_ALL ? AD_ALL_TO_ALL : AD_ALL_REDUCE;
}

static transfer describe_transfer(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_dtype accumulate,
                                  const char *site, ad_array *out) {
  transfer work = {.comm = comm, .in = in, .out = out};
  ad_part_of(&in->layout, &in->shape, ad_comm_rank(comm), &work.in_part);
  ad_part_of(&out->layout, &out->shape, ad_comm_rank(comm), &work.out_part);
  work.call = (ad_collective){.op = op_of(move),
                              .group = ad_array_group(comm, in, axes),
                              .in = in->data,
                              .out = out->data,
                              .count = ad_array_numel(in),
                              .dtype = in->dtype,
                              .accumulate = accumulate,
                              .site = site};
  if (ad_dtype_is_float(in->dtype) && (move == AD_MOVE_ALL_REDUCE || move == AD_MOVE_REDUCE_SCATTER)) {
    work.call.out_dtype = out->dtype;
    work.call.in_scale = in->scale;
    work.call.out_scale = out->scale;
  }
  work.members = ad_group_size(&work.call.group);
  return work;
}

static ad_status communicate(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_dtype accumulate,
                             const char *site, ad_array *out) {
  transfer work = describe_transfer(comm, in, move, axes, accumulate, site, out);
  if (!has_blocks(move)) return ad_comm_run(comm, &work.call);
  AD_TRY(take_scratch(&work, 1, site));
  prepare_blocks(&work);
  AD_TRY(ad_comm_run(comm, &work.call));
  unpack(&work);
  return AD_OK;
}

/* ---- local transitions ---- */

static void zero(ad_array *array) { memset(array->data, 0, ad_array_bytes(array)); }

static void convert(ad_comm *comm, const ad_array *in, ad_type to, ad_array *out) {
  if (in->data == out->data) return;  // equal local parts
  ad_part in_part, out_part, common;
  ad_part_of(&in->layout, &in->shape, ad_comm_rank(comm), &in_part);
  ad_part_of(&out->layout, &out->shape, ad_comm_rank(comm), &out_part);
  ad_part_intersect(&in_part, &out_part, &common);
  if (to == AD_P) zero(out);
  ad_part_copy(out->data, &out_part, in->data, &in_part, &common, ad_dtype_size(in->dtype));
}

static void copy_same(const ad_array *in, ad_array *out) {
  if (in->data != out->data) ad_copy(out->data, in->data, ad_array_bytes(in));
}

static void once(ad_comm *comm, const ad_array *in, ad_axes axes, ad_array *out) {
  ad_group group = ad_array_group(comm, in, axes);
  if (ad_group_index(&group, ad_comm_rank(comm)) == 0) {
    copy_same(in, out);
  } else {
    zero(out);
  }
}

/* ---- the two public ways ---- */

static ad_status check_out(const ad_comm *comm, const ad_array *in, const ad_array *expected, ad_move move,
                           const ad_array *out, const char *site) {
  AD_TRY(ad_array_check(comm, in, ad_move_name(move), site));
  AD_TRY(ad_array_check(comm, out, ad_move_name(move), site));
  // Uneven parts that are declared a cut: only the caller knows the whole shape.
  int shape_fits = ad_shape_equal(&out->shape, &expected->shape) ||
                   (move == AD_MOVE_DECLARE && ad_shape_equal(&out->local, &in->local));
  char want[96], have[96], want_layout[160], have_layout[160];
  int same_numbers = out->dtype == expected->dtype && out->scale == expected->scale;
  int sums = (move == AD_MOVE_ALL_REDUCE || move == AD_MOVE_REDUCE_SCATTER) && ad_dtype_is_float(in->dtype);
  int numbers_fit = same_numbers || (sums && ad_dtype_is_float(out->dtype));
  if (shape_fits && numbers_fit && ad_layout_equal(&out->layout, &expected->layout)) return AD_OK;
  return ad_fail(
      AD_INVALID,
      "%s: %s: the result is described as %s %s \"%s\" times 2^%d, but it is %s %s \"%s\" times 2^%d; take the "
      "description from ad_array_after",
      site, ad_move_name(move), ad_dtype_name(out->dtype), ad_shape_print(&out->shape, have, sizeof have),
      ad_layout_print(&out->layout, have_layout, sizeof have_layout), -out->scale, ad_dtype_name(expected->dtype),
      ad_shape_print(&expected->shape, want, sizeof want),
      ad_layout_print(&expected->layout, want_layout, sizeof want_layout), -expected->scale);
}

static ad_status check_move(const ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to,
                            const char *site, ad_array *out) {
  ad_array expected = {0};
  AD_TRY(ad_array_after(comm, in, move, axes, to, site, &expected));
  return check_out(comm, in, &expected, move, out, site);
}

ad_status ad_array_move(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to, ad_dtype accumulate,
                        const char *site, ad_array *out) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out);
  AD_NEED(in->layout.mesh);
  AD_TRY(check_move(comm, in, move, axes, to, site, out));
  if (ad_comm_is_dry(comm)) return AD_OK;
  switch (move) {
    case AD_MOVE_CONVERT:
      convert(comm, in, to, out);
      return AD_OK;
    case AD_MOVE_ONCE:
      once(comm, in, axes, out);
      return AD_OK;
    case AD_MOVE_DECLARE:
      copy_same(in, out);
      return AD_OK;
    default:
      return communicate(comm, in, move, axes, accumulate, site, out);
  }
}

ad_status ad_array_post(ad_comm *comm, const ad_array *in, ad_move move, ad_axes axes, ad_type to, ad_dtype accumulate,
                        const char *site, ad_array *out, ad_request *request) {
  if (!site) site = AD_NO_SITE;
  AD_NEED(comm, in, out, request);
  AD_NEED(in->layout.mesh);
  if (move != AD_MOVE_ALL_REDUCE && move != AD_MOVE_REDUCE_SCATTER && move != AD_MOVE_ALL_GATHER) {
    return ad_fail(AD_INVALID, "%s: post: %s cannot be posted; use move", site, ad_move_name(move));
  }
  AD_TRY(check_move(comm, in, move, axes, to, site, out));
  *request = (ad_request){0};
  if (ad_comm_is_dry(comm)) return AD_OK;
  transfer work = describe_transfer(comm, in, move, axes, accumulate, site, out);
  if (!has_blocks(move)) return ad_comm_post(comm, &work.call, request);
  AD_TRY(take_scratch(&work, 0, site));
  prepare_blocks(&work);
  return ad_comm_post(comm, &work.call, request);  // which copies the counts
}
