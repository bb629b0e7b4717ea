/* Executes a transition: checks it (law 2, and law 6: like adds to like) and runs its one collective or local copy. The
 * blocks of a collective are first copied next to each other if they are not contiguous in the array's buffer (because
 * another dimension than the first is sharded, or a dimension is sharded zigzag). */
#include "array/transit.h"

#include "array/array.h"
#include "array/packed.h"
#include "array/part.h"
#include "base/error.h"
#include "kernels/kernels.h"
#include "base/injection.h"
#include "comm/hint.h"
#include "comm/scratch.h"

/* ---- the collective of a transition ---- */

/* A collective on parts of arrays. Its memory lies in the comm's scratch memory. */
typedef struct transfer {
  ad_comm *comm;
  const ad_array *in;
  ad_array *out;
  ad_part in_part, out_part;
  ad_collective call;
  int64_t members;
  // Numbers of elements sent to and received from each member. `send` and `receive` are memory for packed blocks.
  size_t *send_counts, *receive_counts;
  char *send, *receive;  // NULL: not needed, because the blocks are contiguous in the array itself
} transfer;

/* *out: the elements that this rank sends to a member: all that this rank has and the member needs. */
static void send_region(const transfer *work, int64_t member, ad_part *out) {
  ad_part theirs;
  ad_part_of(&work->out->layout, &work->out->shape, ad_group_rank(&work->call.group, member), &theirs);
  ad_part_intersect(&work->in_part, &theirs, out);
}

/* *out: the elements that this rank receives from a member: all that the member has and this rank needs. */
static void receive_region(const transfer *work, int64_t member, ad_part *out) {
  ad_part theirs;
  ad_part_of(&work->in->layout, &work->in->shape, ad_group_rank(&work->call.group, member), &theirs);
  ad_part_intersect(&work->out_part, &theirs, out);
}

static int sends_blocks(const transfer *work) { return work->call.op != AD_ALL_GATHER; }
static int receives_blocks(const transfer *work) { return work->call.op != AD_REDUCE_SCATTER; }

/* Returns 1 if the buffer of `part` consists of the members' blocks, one after another, so that no packing is
 * needed. */
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

/* Bytes of scratch memory of a transfer: of each of two lists of counts, and of packed blocks; 0 if blocks need no
 * packing. */
typedef struct scratch_sizes {
  size_t counts, send, receive;
} scratch_sizes;

/* `same_memory`: the result of an all_to_all is written over its input. */
static scratch_sizes measure_scratch(const transfer *work, int same_memory) {
  int pack_send = sends_blocks(work) && !are_runs(work, send_region, &work->in_part);
  int pack_receive = receives_blocks(work) && (same_memory || !are_runs(work, receive_region, &work->out_part));
  return (scratch_sizes){.counts = ad_padded((size_t)work->members * sizeof(size_t)),
                         .send = pack_send ? ad_padded(ad_array_bytes(work->in)) : 0,
                         .receive = pack_receive ? ad_padded(ad_array_bytes(work->out)) : 0};
}

/* Allocates scratch memory for the counts and for packed blocks. If `packs` is 0, blocks that need packing are
 * AD_INVALID. */
static ad_status take_scratch(transfer *work, int packs, const char *site) {
  int same_memory = work->call.op == AD_ALL_TO_ALL && work->in->data == work->out->data;
  scratch_sizes sizes = measure_scratch(work, same_memory);
  int needs_packing = sizes.send || sizes.receive;
  if (work->call.ranges && needs_packing) {
    return ad_fail(AD_INVALID,
                   "%s: sums of leaves can be scattered along dimension 0 only, where each rank's block is contiguous "
                   "in memory; scatter along dimension 0",
                   site);
  }
  if (!packs && needs_packing) {
    return ad_fail(AD_INVALID,
                   "%s: `post` can only shard or gather dimension 0, where each rank's block is contiguous in memory; "
                   "use ad_array_move for another dimension",
                   site);
  }
  void *scratch;
  AD_TRY(ad_comm_scratch(work->comm, 2 * sizes.counts + sizes.send + sizes.receive, &scratch));
  char *at = scratch;
  work->send_counts = (size_t *)(void *)at;
  work->receive_counts = (size_t *)(void *)(at + sizes.counts);
  if (sizes.send) work->send = at + 2 * sizes.counts;
  if (sizes.receive) work->receive = at + 2 * sizes.counts + sizes.send;
  return AD_OK;
}

/* Counts the elements for each member; copies them to work->send, if blocks must be packed. */
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

/* Copies the received blocks to their positions in the result, if they were packed. */
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

static int sums(ad_move move) { return move == AD_MOVE_ALL_REDUCE || move == AD_MOVE_REDUCE_SCATTER; }

static int has_blocks(ad_move move) {
  return move == AD_MOVE_REDUCE_SCATTER || move == AD_MOVE_ALL_GATHER || move == AD_MOVE_ALL_TO_ALL;
}

ad_collective_op ad_move_op(ad_move move) {
  if (move == AD_MOVE_REDUCE_SCATTER) return AD_REDUCE_SCATTER;
  if (move == AD_MOVE_ALL_GATHER) return AD_ALL_GATHER;
  return move == AD_MOVE_ALL_TO_ALL ? AD_ALL_TO_ALL : AD_ALL_REDUCE;
}

/* Describes the collective for a move that communicates, without counts and messages. */
static ad_collective describe_call(ad_comm *comm, const ad_transit *transit, const ad_array *in, const ad_array *out) {
  ad_collective call = {.size = sizeof call,
                        .op = ad_move_op(transit->move),
                        .group = ad_array_group(comm, in, transit->axes),
                        .in = in->data,
                        .out = out->data,
                        .count = ad_array_numel(in),
                        .dtype = in->dtype,
                        .accumulate = transit->accumulate,
                        .adds = transit->adds,
                        .ranges = transit->ranges,
                        .site = transit->site};
  if (ad_dtype_is_float(in->dtype) && sums(transit->move)) {
    call.out_dtype = out->dtype;
    call.in_scale = in->scale;
    call.out_scale = out->scale;
  }
  return call;
}

static transfer describe_transfer(ad_comm *comm, const ad_collective *call, const ad_array *in, ad_array *out) {
  transfer work = {.comm = comm, .in = in, .out = out, .call = *call, .members = ad_group_size(&call->group)};
  ad_part_of(&in->layout, &in->shape, ad_comm_rank(comm), &work.in_part);
  ad_part_of(&out->layout, &out->shape, ad_comm_rank(comm), &work.out_part);
  return work;
}

/* Posts the collective if `request` is not NULL; blocks must then not be packed. Otherwise runs the collective until it
 * is complete. */
static ad_status start(ad_comm *comm, const ad_transit *transit, const ad_collective *call, ad_request *request) {
  if (request) return ad_comm_post_hinted(comm, call, transit->past_caches, request);
  return ad_comm_run(comm, call);
}

size_t ad_transit_scratch_bytes(ad_comm *comm, const ad_transit *transit, const ad_array *in, const ad_array *out) {
  if (!has_blocks(transit->move)) return 0;
  ad_array result = *out;
  ad_collective call = describe_call(comm, transit, in, &result);
  transfer work = describe_transfer(comm, &call, in, &result);
  scratch_sizes sizes = measure_scratch(&work, 0);
  return 2 * sizes.counts + sizes.send + sizes.receive;
}

static ad_status communicate_blocks(ad_comm *comm, const ad_transit *transit, const ad_collective *call,
                                    const ad_array *in, ad_array *out, ad_request *request) {
  transfer work = describe_transfer(comm, call, in, out);
  AD_TRY(take_scratch(&work, !request, transit->site));
  prepare_blocks(&work);
  AD_TRY(start(comm, transit, &work.call, request));  // a posted collective copies the counts
  unpack(&work);
  return AD_OK;
}

static ad_status communicate(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out,
                             ad_request *request) {
  ad_collective call = describe_call(comm, transit, in, out);
  if (!has_blocks(transit->move)) return start(comm, transit, &call, request);
  if (!ad_array_is_packed(in)) return communicate_blocks(comm, transit, &call, in, out, request);
  int gathers = transit->move == AD_MOVE_ALL_GATHER;
  AD_TRY(ad_packed_segments(comm, gathers ? out : in, gathers ? in : out, transit->site, &call));
  return start(comm, transit, &call, request);
}

/* ---- transitions that need no communication ---- */

static void zero(ad_array *array) { memset(array->data, 0, ad_array_bytes(array)); }

/* Copies the elements that both local parts have. If `to` is P, all other elements of `out` become zero. */
static void convert(ad_comm *comm, const ad_array *in, ad_type to, ad_array *out) {
  if (in->data == out->data) return;  // the result has in's memory, and the two local parts are the same
  if (to == AD_P) zero(out);
  if (ad_array_is_packed(in)) {
    ad_packed_copy_common(ad_comm_rank(comm), in, out);
    return;
  }
  ad_part in_part, out_part, common;
  ad_part_of(&in->layout, &in->shape, ad_comm_rank(comm), &in_part);
  ad_part_of(&out->layout, &out->shape, ad_comm_rank(comm), &out_part);
  ad_part_intersect(&in_part, &out_part, &common);
  ad_part_copy(out->data, &out_part, in->data, &in_part, &common, ad_dtype_size(in->dtype));
}

static void copy_same(const ad_array *in, ad_array *out) {
  if (in->data != out->data) ad_copy(out->data, in->data, ad_array_bytes(in));
}

/* Keeps the value on the first rank along `axes` and zeroes it on the others. */
static void once(ad_comm *comm, const ad_array *in, ad_axes axes, ad_array *out) {
  ad_group group = ad_array_group(comm, in, axes);
  if (ad_group_index(&group, ad_comm_rank(comm)) == 0) {
    copy_same(in, out);
  } else {
    zero(out);
  }
}

/* ---- checks before a transition ---- */

static ad_status describe_result(const ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out) {
  if (transit->move == AD_MOVE_ALL_TO_ALL && transit->send_rows) return ad_exchange_after(comm, transit, in, out);
  return ad_array_after_at(comm, in, transit->move, transit->axes, transit->to, out, transit->site);
}

/* Checks law 6 (like adds to like) for a reduce_scatter that adds to the contents of `out`. */
static ad_status check_adds(const ad_transit *transit, const ad_array *in, const ad_array *expected,
                            const ad_array *out) {
  if (transit->move != AD_MOVE_REDUCE_SCATTER || !ad_dtype_is_float(in->dtype)) {
    return ad_fail(AD_INVALID,
                   "%s: `%s` cannot add to the contents of its result; only a reduce_scatter of a floating dtype can; "
                   "write the result to memory of its own, and add it afterwards",
                   transit->site, ad_move_name(transit->move));
  }
  ad_array incoming = *expected;
  incoming.scale = 0;
  return ad_array_check_addend(out, &incoming, transit->site);
}

/* Returns 1 if dtype and scale of `out` are the expected ones, or if the move sums and both dtypes are floats: a sum
 * may be rounded to another dtype and scale. */
static int numbers_fit(const ad_transit *transit, const ad_array *in, const ad_array *expected, const ad_array *out) {
  if (out->dtype == expected->dtype && out->scale == expected->scale) return 1;
  return sums(transit->move) && ad_dtype_is_float(in->dtype) && ad_dtype_is_float(out->dtype);
}

/* Checks that `out` is described as the move's result; the result of a sum may have another floating dtype and
 * scale. */
static ad_status check_out(const ad_comm *comm, const ad_transit *transit, const ad_array *in, const ad_array *expected,
                           const ad_array *out) {
  const char *move = ad_move_name(transit->move), *site = transit->site;
  AD_TRY(ad_array_check(comm, in, move, site));
  AD_TRY(ad_array_check(comm, out, move, site));
  if (transit->adds) AD_TRY(check_adds(transit, in, expected, out));
  // The full shape after a declaration of uneven shards is known only to the caller, so any full shape is allowed.
  int shape_fits = ad_shape_equal(&out->shape, &expected->shape) ||
                   (transit->move == AD_MOVE_DECLARE && ad_shape_equal(&out->local, &in->local));
  char want[96], have[96], want_layout[160], have_layout[160];
  int fits = shape_fits && ad_packed_identical(out, expected) && numbers_fit(transit, in, expected, out);
  if (fits && ad_layout_equal(&out->layout, &expected->layout)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: the result of `%s` has another description than `out`: `out` is %s %s \"%s\" times 2^%d, the "
                 "result is %s %s \"%s\" times 2^%d; take the description of `out` from ad_array_after",
                 site, move, ad_dtype_name(out->dtype), ad_shape_print(&out->shape, have, sizeof have),
                 ad_layout_print(&out->layout, have_layout, sizeof have_layout), -out->scale,
                 ad_dtype_name(expected->dtype), ad_shape_print(&expected->shape, want, sizeof want),
                 ad_layout_print(&expected->layout, want_layout, sizeof want_layout), -expected->scale);
}

static ad_status check_arrays(const ad_comm *comm, const ad_transit *transit, const ad_array *in, const ad_array *out) {
  ad_array expected = {0};
  AD_TRY(describe_result(comm, transit, in, &expected));
  return check_out(comm, transit, in, &expected, out);
}

/* ---- executing a transition, or posting it ---- */

/* Passes the transition to the mutation at the injection point, if there is one. Returns 1 if the mutation executed the
 * transition itself, with the outcome *status. */
static int is_handled(ad_comm *comm, const ad_transit *transit, const ad_array *in, ad_array *out, ad_request *request,
                      ad_status *status) {
  ad_transit_passing passing = {comm, transit, in, out, request, 0, AD_OK};
  ad_inject(AD_INJECT_TRANSIT, &passing);
  *status = passing.status;
  return passing.handled;
}

/* Fills in a call site for messages if the caller gave none. */
static ad_transit with_site(const ad_transit *transit) {
  ad_transit complete = *transit;
  if (!complete.site) complete.site = AD_NO_SITE;
  return complete;
}

ad_status ad_transit_run(ad_comm *comm, const ad_transit *given, const ad_array *in, ad_array *out) {
  ad_transit transit = with_site(given);
  ad_status status;
  AD_TRY(check_arrays(comm, &transit, in, out));
  if (is_handled(comm, &transit, in, out, NULL, &status)) return status;
  if (ad_comm_is_dry(comm)) return AD_OK;
  switch (transit.move) {
    case AD_MOVE_CONVERT:
      convert(comm, in, transit.to, out);
      return AD_OK;
    case AD_MOVE_ONCE:
      once(comm, in, transit.axes, out);
      return AD_OK;
    case AD_MOVE_DECLARE:
      copy_same(in, out);
      return AD_OK;
    default:
      return transit.send_rows ? ad_exchange_run(comm, &transit, in, out) : communicate(comm, &transit, in, out, NULL);
  }
}

ad_status ad_transit_post(ad_comm *comm, const ad_transit *given, const ad_array *in, ad_array *out,
                          ad_request *request) {
  ad_transit transit = with_site(given);
  if (!sums(transit.move) && transit.move != AD_MOVE_ALL_GATHER) {
    return ad_fail(AD_INVALID, "%s: `post` cannot do a move of kind %s; use ad_array_move", transit.site,
                   ad_move_name(transit.move));
  }
  ad_status status;
  AD_TRY(check_arrays(comm, &transit, in, out));
  *request = (ad_request){0};
  if (is_handled(comm, &transit, in, out, request, &status)) return status;
  return ad_comm_is_dry(comm) ? AD_OK : communicate(comm, &transit, in, out, request);
}
