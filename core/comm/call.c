/* Makes a call from a collective, or from one side of a transfer: validates it and computes all sizes and offsets. No
 * values are read or written here. */
#include "comm/call.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "addend/layout.h"
#include "base/dtypes.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/text.h"
#include "comm/leaf_ranges.h"
#include "comm/ranks.h"
#include "mesh/group.h"
#include "mesh/mesh.h"

const char *ad_reduction_name(ad_reduction reduction) {
  static const char *const names[] = {"sum", "max", "min", "product", "bit_and", "bit_or", "bit_xor"};
  return (unsigned)reduction < sizeof names / sizeof *names ? names[reduction] : "unknown";
}

int64_t ad_shape_members(const ad_group_shape *shape) {
  int64_t members = 1;
  for (int k = 0; k < shape->count; k++) members *= shape->size[k];
  return members;
}

int64_t ad_shape_rank(const ad_group_shape *shape, int64_t index) {
  int64_t rank = shape->base;
  if (shape->list) return shape->ranks[index];
  for (int k = shape->count - 1; k >= 0; k--) {
    rank += index % shape->size[k] * shape->stride[k];
    index /= shape->size[k];
  }
  return rank + (shape->gap && rank - shape->base >= shape->head ? shape->gap : 0);
}

// Returns the index of a rank in the group, or -1 if the rank is no member.
static int64_t index_in(const ad_group_shape *shape, int64_t rank) {
  int64_t rest = rank - shape->base, index = 0;
  if (shape->gap && rest >= shape->head) rest = rest < shape->head + shape->gap ? -1 : rest - shape->gap;
  if (rest < 0) return -1;
  for (int k = 0; k < shape->count; k++) {
    int64_t digit = rest / shape->stride[k];
    if (digit >= shape->size[k]) return -1;
    index = index * shape->size[k] + digit;
    rest -= digit * shape->stride[k];
  }
  return rest ? -1 : index;
}

#define REFUSE AD_REFUSE_CALL

// Fills those fields of a call that describe its group, for a group that is the list `ranks`.
static void take_list(ad_ranks *ranks, ad_call *call) {
  call->ranks = ranks;
  call->axes = AD_AXES_ALL;
  call->shape = ad_ranks_shape(ranks);
  call->members = (uint32_t)ad_ranks_count(ranks);
  call->index = ad_ranks_own(ranks);
}

// Fills those fields of a call that describe its group, which is a list of ranks or a group of a mesh; checks that this
// rank is in it.
static ad_status take_group(const ad_collective *collective, int64_t rank, int64_t size, ad_call *call) {
  const ad_mesh *mesh = collective->group.mesh;
  if (collective->ranks && mesh) return REFUSE(call, "%s", "`group` and `ranks` are both set; set only one of the two");
  if (collective->ranks) {
    take_list((ad_ranks *)collective->ranks, call);
    return AD_OK;
  }
  if (!mesh) return REFUSE(call, "%s", "`group` has no mesh; make the group with ad_mesh_group");
  if (ad_mesh_last_rank(mesh) >= size)
    return REFUSE(call,
                  "the mesh \"%s\" needs ranks %" PRId64 " to %" PRId64 ", but the world has only %" PRId64 " ranks",
                  ad_mesh_text(mesh), ad_mesh_first_rank(mesh), ad_mesh_last_rank(mesh), size);
  call->axes = collective->group.axes;
  call->shape = ad_group_canonical(&collective->group);
  int64_t index = index_in(&call->shape, rank), members = ad_shape_members(&call->shape);
  int64_t last = ad_shape_rank(&call->shape, members - 1);
  if (!ad_mesh_has_rank(mesh, rank) || !ad_mesh_has_rank(mesh, call->shape.base) || !ad_mesh_has_rank(mesh, last))
    return REFUSE(call,
                  "rank %" PRId64 " calls with a group of ranks %" PRId64 " to %" PRId64
                  ", but the mesh \"%s\" has ranks %" PRId64 " to %" PRId64
                  "; make the group with ad_mesh_group on a rank of the mesh",
                  rank, call->shape.base, last, ad_mesh_text(mesh), ad_mesh_first_rank(mesh), ad_mesh_last_rank(mesh));
  if (index < 0) {
    char group[256];
    return REFUSE(call, "rank %" PRId64 " is not in the group %s of the call; only ranks of the group may call", rank,
                  ad_group_print(&collective->group, group, sizeof group));
  }
  call->members = (uint32_t)members;
  call->index = (uint32_t)index;
  return AD_OK;
}

enum { SCALE_MAX = 100 };  // largest exponent of a scale: 2^-100 and 2^100 are both normal numbers of f32

// Checks how the results of a reduction are written: their dtype, the scales, and whether results are added to the
// output.
static ad_status take_outputs(const ad_collective *collective, ad_call *call) {
  ad_reducing *how = &call->reducing;
  how->out_dtype = collective->out_dtype ? collective->out_dtype : call->dtype;
  how->shift = collective->in_scale - collective->out_scale;
  how->adds = collective->adds != 0;
  call->in_scale = collective->in_scale;
  call->out_scale = collective->out_scale;
  call->out_element = ad_dtype_size(how->out_dtype);
  int scaled = call->in_scale || call->out_scale;
  if (!call->out_element ||
      (how->out_dtype != call->dtype && !(ad_dtype_is_float(call->dtype) && ad_dtype_is_float(how->out_dtype))))
    return REFUSE(call,
                  "sums of %s cannot be written as %s (`out_dtype`); a sum of floats can be written in any float "
                  "dtype, a sum of integers or bool only in its own dtype; set another `out_dtype`",
                  ad_dtype_name(call->dtype), ad_dtype_name(how->out_dtype));
  if (abs(call->in_scale) > SCALE_MAX || abs(call->out_scale) > SCALE_MAX)
    return REFUSE(call,
                  "`in_scale` and `out_scale` must be from -%d to %d, but are %d and %d; set numbers in this range",
                  SCALE_MAX, SCALE_MAX, call->in_scale, call->out_scale);
  if ((scaled || how->adds) && (!ad_dtype_is_float(call->dtype) || how->reduction != AD_SUM))
    return REFUSE(
        call,
        "`in_scale`, `out_scale` and `adds` are only for sums of floats, not for the %s of %s; set all three to 0",
        ad_reduction_name(how->reduction), ad_dtype_name(call->dtype));
  if (how->adds && (!ad_may_add(call->operation) || how->out_dtype != how->accumulate))
    return REFUSE(call,
                  "`adds` is set and the output is %s, but only a reduce_scatter can add to its output, and only if "
                  "the output has the dtype of the sums, %s; set `adds` to 0",
                  ad_dtype_name(how->out_dtype), ad_dtype_name(how->accumulate));
  return AD_OK;
}

// Returns 1 if the caller set a field that only operations that reduce use.
static int says_outputs(const ad_collective *collective) {
  return collective->out_dtype || collective->in_scale || collective->out_scale || collective->adds;
}

// Checks the reduction and sets the dtype in which sums are accumulated; the default is the wide dtype of a float, and
// otherwise the dtype itself.
static ad_status take_reduction(const ad_collective *collective, ad_call *call) {
  ad_dtype accumulate = collective->accumulate;
  ad_reduction reduction = collective->reduction;
  int is_float = ad_dtype_is_float(call->dtype);
  if (!accumulate)
    accumulate = is_float ? ad_dtype_wide(call->dtype) : call->dtype;
  else if (is_float ? !ad_dtype_is_wide(accumulate) || ad_dtype_size(accumulate) < ad_dtype_size(call->dtype)
                    : accumulate != call->dtype)
    return REFUSE(call,
                  "%s cannot be summed in %s (`accumulate`); floats are summed in f32 or f64, and in no narrower dtype "
                  "than their own, integers and bool in their own dtype; set another `accumulate`",
                  ad_dtype_name(call->dtype), ad_dtype_name(accumulate));
  if ((unsigned)reduction > AD_BIT_XOR)
    return REFUSE(call,
                  "`reduction` is %d, which is no reduction; use sum, max, min, product, bit_and, bit_or or bit_xor",
                  (int)reduction);
  if (is_float && reduction >= AD_BIT_AND)
    return REFUSE(call, "%s cannot be reduced with %s, which is only for integers and bool; use another reduction",
                  ad_dtype_name(call->dtype), ad_reduction_name(reduction));
  call->reducing = (ad_reducing){.dtype = call->dtype, .accumulate = accumulate, .reduction = reduction};
  return AD_OK;
}

static ad_status take_types(const ad_collective *collective, ad_call *call) {
  if (call->operation->in == AD_BUFFER_NONE) return AD_OK;
  call->element = ad_dtype_size(call->dtype);
  if (!call->element) return REFUSE(call, "`dtype` is %d, which is no dtype", (int)call->dtype);
  call->out_element = call->element;
  if (!call->operation->reduces) {
    if (!says_outputs(collective)) return AD_OK;
    return REFUSE(
        call, "%s",
        "`out_dtype`, `in_scale`, `out_scale` and `adds` are only for operations that reduce; set all four to 0");
  }
  AD_TRY(take_reduction(collective, call));
  return take_outputs(collective, call);
}

// Sets *out to memory for the call's arrays: inside the struct of the call if they fit, else on the heap, where it is
// kept for later calls.
static ad_status take_words(ad_call *call, size_t bytes, void **out) {
  *out = bytes <= sizeof call->words ? call->words : call->owned;
  if (bytes <= sizeof call->words || bytes <= call->owned_bytes) return AD_OK;
  ad_call_release(call);
  AD_TRY(ad_new_bytes(bytes, 1, &call->owned));
  call->owned_bytes = bytes;
  *out = call->owned;
  return AD_OK;
}

static ad_status too_large(const ad_call *call) {
  return REFUSE(call, "%s", "the numbers of elements add up to more than memory can hold; send fewer elements");
}

// Sets starts[i] to the sum of counts[0] .. counts[i - 1].
static ad_status sum_counts(const ad_call *call, const size_t *counts, size_t *starts) {
  starts[0] = 0;
  for (uint32_t i = 0; i < call->members; i++)
    if (__builtin_add_overflow(starts[i], counts[i], &starts[i + 1])) return too_large(call);
  return AD_OK;
}

// Checks `counts` and `receive_counts`, and computes where each block starts.
static ad_status take_counts(const ad_collective *collective, ad_call *call) {
  int pairs = ad_is_of_pairs(call->operation);
  if (!ad_takes_counts(call->operation) && collective->counts)
    return REFUSE(call, "%s", "`counts` is set, but this operation has no blocks; set `counts` to NULL");
  if (!collective->counts != !collective->receive_counts && pairs)
    return REFUSE(call, "%s", "only one of `counts` and `receive_counts` is set; set both or neither");
  if (!pairs && collective->receive_counts)
    return REFUSE(call, "%s", "`receive_counts` is set, but only all_to_all takes `receive_counts`; set it to NULL");
  if (!collective->counts) return AD_OK;
  size_t *starts;
  AD_TRY(take_words(call, 2 * (call->members + 1) * sizeof *starts, (void **)&starts));
  call->count = 0;
  call->in_starts = starts;
  call->out_starts = collective->receive_counts ? starts + call->members + 1 : starts;
  AD_TRY(sum_counts(call, collective->counts, call->in_starts));
  return collective->receive_counts ? sum_counts(call, collective->receive_counts, call->out_starts) : AD_OK;
}

/* ---- a collective's segments: how they are split between the members ---- */

// Computes the end of segment s in the full value, and, for each member, the end of its part of the segment in its
// block.
static ad_status cut_segment(const ad_call *call, size_t s, const ad_segment *segment) {
  size_t count;
  if (segment->rows < 0)
    return REFUSE(call, "segment %zu has %" PRId64 " rows, but must have 0 or more; set such a number", s,
                  segment->rows);
  if (__builtin_mul_overflow((size_t)segment->rows, segment->row, &count) ||
      __builtin_add_overflow(call->segment_starts[s], count, &call->segment_starts[s + 1]))
    return too_large(call);
  for (uint32_t k = 0; k < call->members; k++) {
    size_t *starts = call->part_starts + k * (call->segment_count + 1);
    starts[s + 1] = starts[s] + (size_t)ad_cut(segment->rows, k, call->members).count * segment->row;
  }
  return AD_OK;
}

// Checks the segments and computes where each segment, and each member's part of it, starts.
static ad_status take_segments(const ad_collective *collective, ad_call *call) {
  size_t count = collective->segment_count, words, bytes;
  if (!collective->segments) return AD_OK;
  if (!call->operation->takes_segments)
    return REFUSE(call, "%s",
                  "`segments` is set, but only reduce_scatter and all_gather take segments; set `segments` to NULL");
  if (collective->counts)
    return REFUSE(call, "%s",
                  "`segments` and `counts` are both set, but the segments define the blocks; set `counts` to NULL");
  if (!count) return REFUSE(call, "%s", "`segment_count` is 0; give a value without elements one segment of 0 rows");
  if (__builtin_mul_overflow(count + 1, (size_t)call->members + 1, &words) ||
      __builtin_mul_overflow(words, sizeof(size_t), &bytes))
    return too_large(call);
  AD_TRY(take_words(call, bytes, (void **)&call->segment_starts));
  memset(call->segment_starts, 0, bytes);
  call->part_starts = call->segment_starts + count + 1;
  call->segment_count = count;
  call->segments_hash = XXH3_64bits(collective->segments, count * sizeof *collective->segments);
  for (size_t s = 0; s < count; s++) AD_TRY(cut_segment(call, s, &collective->segments[s]));
  call->count = call->segment_starts[count];
  return AD_OK;
}

static const size_t *parts_of(const ad_call *call, uint32_t member) {
  return call->part_starts + member * (call->segment_count + 1);
}

size_t ad_call_block(const ad_call *call, uint32_t member) {
  if (call->segment_count) return parts_of(call, member)[call->segment_count];
  return ad_call_in_start(call, member + 1) - ad_call_in_start(call, member);
}

// Returns the index of the segment that contains element `at` of a block; `at` must be inside the block. starts[s] is
// the offset, in the block, of the block's part of segment s.
static size_t find_segment(const size_t *starts, size_t count, size_t at) {
  size_t first = 0, end = count;
  while (first + 1 < end) {
    size_t middle = first + (end - first) / 2;
    if (starts[middle] <= at)
      first = middle;
    else
      end = middle;
  }
  return first;
}

size_t ad_call_part(const ad_call *call, uint32_t member, size_t s, size_t *at, size_t *whole) {
  *at = 0;
  *whole = ad_call_in_start(call, member);
  if (!call->segment_count) return ad_call_block(call, member);
  const size_t *starts = parts_of(call, member);
  *at = starts[s];
  *whole = call->segment_starts[s];
  for (uint32_t k = 0; k < member; k++) *whole += parts_of(call, k)[s + 1] - parts_of(call, k)[s];
  return starts[s + 1] - starts[s];
}

size_t ad_call_run(const ad_call *call, uint32_t member, size_t at, size_t *whole) {
  if (at >= ad_call_block(call, member)) return 0;
  size_t s = call->segment_count ? find_segment(parts_of(call, member), call->segment_count, at) : 0, start, first;
  size_t count = ad_call_part(call, member, s, &start, &first);
  *whole = first + (at - start);
  return count - (at - start);
}

/* Returns the element at which a piece starts in a buffer that contains `what`: `start` if the buffer has the blocks
 * of all members, else 0. */
static size_t piece_start(ad_buffer what, size_t start) {
  return what == AD_BUFFER_BLOCKS || what == AD_BUFFER_PAIRS ? start : 0;
}

ad_comm_piece ad_call_piece(const ad_call *call, uint32_t from, uint32_t to, size_t s) {
  const ad_comm_operation *o = call->operation;
  if ((o->in_on_root && from != call->root) || (o->out_on_root && to != call->root) || o->in == AD_BUFFER_NONE)
    return (ad_comm_piece){0};
  if (o->in == AD_BUFFER_VALUE) return (ad_comm_piece){0, 0, call->count};
  if (call->segment_count) {
    size_t at, whole, count = ad_call_part(call, o->in == AD_BUFFER_BLOCK ? from : to, s, &at, &whole);
    return o->in == AD_BUFFER_BLOCK ? (ad_comm_piece){at, whole, count} : (ad_comm_piece){whole, at, count};
  }
  size_t in = ad_call_in_start(call, to), out = ad_call_out_start(call, from);
  // The size of the block for the receiver, except that the sender's block counts if the sender has only one block, or
  // if only the receiver's counts (of pairs) are known on this rank.
  size_t count = o->in == AD_BUFFER_BLOCK || (ad_is_of_pairs(o) && from != call->index)
                     ? ad_call_out_start(call, from + 1) - out
                     : ad_call_in_start(call, to + 1) - in;
  return (ad_comm_piece){piece_start(o->in, in), piece_start(o->out, out), count};
}

size_t ad_call_addend(const ad_call *call) {
  if (ad_is_sliced(call->operation) || call->segment_count) return call->count;
  return ad_call_in_start(call, call->members);
}

static ad_status check_message(const ad_call *call, const ad_message *message, size_t i) {
  if (message->peer < 0 || message->peer >= call->members)
    return REFUSE(call, "`peer` of message %zu is %" PRId64 ", which is not an index in the group of %u rank%s", i,
                  message->peer, call->members, ad_plural(call->members));
  if (message->send && message->receive)
    return REFUSE(call, "message %zu has both `send` and `receive`; set one of the two to NULL", i);
  if (message->count && !message->send && !message->receive)
    return REFUSE(call, "message %zu has %zu element%s, but `send` and `receive` are NULL; set one of the two", i,
                  message->count, ad_plural((long long)message->count));
  return message->count > SIZE_MAX / 2 / call->element ? too_large(call) : AD_OK;
}

static int share_memory(const ad_call *call, const ad_message *a, const ad_message *b) {
  uintptr_t of_a = (uintptr_t)(a->send ? a->send : a->receive), of_b = (uintptr_t)(b->send ? b->send : b->receive);
  return a->count && b->count && of_a < of_b + b->count * call->element && of_b < of_a + a->count * call->element;
}

// Refuses a receive buffer that overlaps another message's buffer: the message may arrive while the other buffer is
// still read or written.
static ad_status check_apart(const ad_call *call, const ad_message *messages, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; messages[i].receive && k < count; k++)
      if (k != i && share_memory(call, &messages[i], &messages[k]))
        return REFUSE(call,
                      "message %zu is received into memory that message %zu %s; give each message memory of its own", i,
                      k, messages[k].send ? "is sent from" : "is also received into");
  return AD_OK;
}

// Sorts the messages into the call: sends before receives, then by peer, then in the caller's order. `places` is
// scratch memory of 2 * members + 1 numbers, all 0.
static void sort_messages(ad_call *call, const ad_message *messages, size_t *places) {
  for (size_t i = 0; i < call->message_count; i++)
    places[(messages[i].send ? 0 : call->members) + (size_t)messages[i].peer + 1]++;
  for (size_t k = 1; k < 2 * (size_t)call->members; k++) places[k] += places[k - 1];
  for (size_t i = 0; i < call->message_count; i++)
    call->messages[places[(messages[i].send ? 0 : call->members) + (size_t)messages[i].peer]++] = messages[i];
}

// Checks the messages of an exchange, and copies them into the call, sorted.
static ad_status take_messages(const ad_collective *collective, ad_call *call) {
  if (!ad_is_of_messages(call->operation)) return AD_OK;
  size_t count = collective->message_count, places = (2 * (size_t)call->members + 1) * sizeof(size_t);
  if (count && !collective->messages)
    return REFUSE(call, "`message_count` is %zu, but `messages` is NULL; pass the messages, or a count of 0", count);
  if (count > SIZE_MAX / 2 / sizeof(ad_message)) return too_large(call);
  for (size_t i = 0; i < count; i++) AD_TRY(check_message(call, &collective->messages[i], i));
  AD_TRY(check_apart(call, collective->messages, count));
  AD_TRY(take_words(call, count * sizeof(ad_message) + places, (void **)&call->messages));
  call->message_count = count;
  memset(call->messages + count, 0, places);
  sort_messages(call, collective->messages, (size_t *)(void *)(call->messages + count));
  return AD_OK;
}

// Sizes of a call's data in elements.
typedef struct extent {
  size_t whole, block, received;  // of all blocks; of this member's block; of the blocks that it receives in all_to_all
} extent;

// Computes the sizes of the call's data; all are 0 for a barrier and an exchange, which have no blocks.
static ad_status find_extent(const ad_call *call, extent *out) {
  if (call->segment_count) {
    *out = (extent){call->count, ad_call_block(call, call->index), call->count};
  } else if (call->in_starts) {
    size_t block = call->in_starts[call->index + 1] - call->in_starts[call->index];
    *out = (extent){call->in_starts[call->members], block, call->out_starts[call->members]};
  } else if (!ad_has_no_value(call->operation)) {
    out->block = call->count;
    if (__builtin_mul_overflow(call->count, (size_t)call->members, &out->whole)) return too_large(call);
    out->received = out->whole;
  }
  return AD_OK;
}

// Computes the sizes of this member's buffers in bytes.
static ad_status measure_extent(ad_call *call) {
  const ad_comm_operation *operation = call->operation;
  int is_root = call->index == call->root;
  extent of = {0};
  AD_TRY(find_extent(call, &of));
  size_t sizes[] = {[AD_BUFFER_NONE] = 0,          [AD_BUFFER_VALUE] = of.block, [AD_BUFFER_BLOCK] = of.block,
                    [AD_BUFFER_BLOCKS] = of.whole, [AD_BUFFER_PAIRS] = of.whole, [AD_BUFFER_MESSAGES] = 0};
  size_t in = operation->in_on_root && !is_root ? 0 : sizes[operation->in];
  sizes[AD_BUFFER_PAIRS] = of.received;
  size_t out = operation->out_on_root && !is_root ? 0 : sizes[operation->out];
  size_t addends = ad_call_addends(call, call->index), results = ad_call_results(call);
  if (__builtin_mul_overflow(in, call->element * addends, &call->in_bytes) || call->in_bytes > SIZE_MAX / 4)
    return too_large(call);
  if (__builtin_mul_overflow(out, call->out_element * results, &call->out_bytes) || call->out_bytes > SIZE_MAX / 4)
    return too_large(call);
  return AD_OK;
}

// Returns 1 if `in` and `out` overlap in the way that the operation permits; see ad_collective.
static int in_place(const ad_call *call) {
  const char *in = call->in, *out = call->out;
  if (call->element != call->out_element || call->reducing.adds) return 0;
  if (call->segment_count) return call->members == 1 && in == out;
  switch (ad_may_overlap(call->operation)) {
    case AD_BLOCK_INSIDE:
      return call->operation->in == AD_BUFFER_BLOCKS ? out == in + ad_call_in_start(call, call->index) * call->element
                                                     : in == out + ad_call_out_start(call, call->index) * call->element;
    case AD_SAME_BUFFER:
      return in == out;
    default:
      return 0;
  }
}

// Checks that the call's buffers exist, are aligned, and overlap only if the operation permits it.
static ad_status check_buffers(const ad_call *call) {
  uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
  if (call->in_bytes && !in) return REFUSE(call, "`in` is NULL, but must point to %zu bytes", call->in_bytes);
  if (call->out_bytes && !out) return REFUSE(call, "`out` is NULL, but must point to %zu bytes", call->out_bytes);
  // Sizes of dtypes are powers of 2, and divisions are slow.
  if ((call->in_bytes && in & (call->element - 1)) || (call->out_bytes && out & (call->out_element - 1)))
    return REFUSE(call, "`in` or `out` is not aligned for its dtype (%s); align the buffer to the size of an element",
                  ad_dtype_name(call->dtype));
  int overlap = call->in_bytes && call->out_bytes && in < out + call->out_bytes && out < in + call->in_bytes;
  if (overlap && ad_call_results(call) > 1)
    return REFUSE(
        call,
        "`in` and `out` overlap, but the members' leaves make up %u sums; give `in` and `out` memory of their own",
        ad_call_results(call));
  if (overlap && !in_place(call))
    return REFUSE(call, "%s",
                  "`in` and `out` overlap in a way that this call does not allow. They may be the same buffer for "
                  "all_reduce and broadcast, and the smaller buffer may be this rank's block of the larger one for "
                  "reduce_scatter and all_gather; `in` and `out` must be apart for all_to_all, with segments, and "
                  "where elements change their size or sums are added to `out`");
  return AD_OK;
}

static ad_status take_root(const ad_collective *collective, ad_call *call) {
  if (!ad_has_root(call->operation)) return AD_OK;
  if (collective->root < 0 || collective->root >= call->members)
    return REFUSE(call, "`root` is %" PRId64 ", which is not an index in the group of %u rank%s", collective->root,
                  call->members, ad_plural(call->members));
  call->root = (uint32_t)collective->root;
  return AD_OK;
}

static ad_status prepare_call(const ad_collective *collective, int64_t rank, int64_t size, ad_call *call) {
  AD_TRY(take_group(collective, rank, size, call));
  AD_TRY(take_root(collective, call));
  AD_TRY(take_types(collective, call));
  AD_TRY(take_counts(collective, call));
  AD_TRY(take_segments(collective, call));
  AD_TRY(take_messages(collective, call));
  AD_TRY(ad_call_take_ranges(collective->ranges, call));
  AD_TRY(measure_extent(call));
  return check_buffers(call);
}

ad_status ad_call_prepare(const ad_collective *collective, int64_t rank, int64_t size, ad_call *out) {
  const ad_comm_operation *operation = ad_comm_operation_of(collective->op);
  if (!operation || ad_op_is_transfer(collective->op))
    return ad_fail(AD_INVALID, "ad_comm_run: `op` is %d, but must be a collective operation of ad_collective_op",
                   collective->op);
  memset(out, 0, offsetof(ad_call, owned));
  out->op = collective->op;
  out->operation = operation;
  out->dtype = collective->dtype;
  out->count = collective->count;
  out->in = collective->in;
  out->out = collective->out;
  out->site = collective->site ? collective->site : AD_NO_SITE;
  return prepare_call(collective, rank, size, out);
}

/* ---- preparing one side of a transfer ---- */

// Returns the shape of the group of all ranks of the world, in order.
static ad_group_shape world_shape(int64_t size) {
  ad_group_shape shape = {.count = size > 1};
  if (size > 1) shape.size[0] = size, shape.stride[0] = 1;
  return shape;
}

// Fills those fields of a transfer's call that describe its group and its peer.
static ad_status take_peer(const ad_transfer *transfer, int64_t rank, int64_t size, ad_call *call) {
  if (transfer->ranks) {
    take_list((ad_ranks *)transfer->ranks, call);
  } else {
    call->axes = AD_AXES_ALL;
    call->shape = world_shape(size);
    call->members = (uint32_t)size;
    call->index = (uint32_t)rank;
  }
  int is_any = transfer->peer == AD_ANY_SOURCE;
  if (is_any && (int)call->op == AD_OP_SEND)
    return REFUSE(call, "%s", "`peer` of a send is AD_ANY_SOURCE, but must be one rank; set its index");
  if (!is_any && (transfer->peer < 0 || transfer->peer >= call->members))
    return REFUSE(call, "`peer` is %" PRId64 ", which is not an index in %s of %u rank%s", transfer->peer,
                  transfer->ranks ? "a list" : "a world", call->members, ad_plural(call->members));
  call->peer = is_any ? AD_ANY_SOURCE : ad_shape_rank(&call->shape, transfer->peer);
  return AD_OK;
}

// Checks the buffer of one side of a transfer, and makes it the call's input or output.
static ad_status take_side(const ad_transfer *transfer, ad_call *call) {
  const void *buffer = transfer->receive ? transfer->receive : transfer->send;
  call->element = call->out_element = ad_dtype_size(call->dtype);
  if (!call->element) return REFUSE(call, "`dtype` is %d, which is no dtype", (int)call->dtype);
  if (transfer->send && (transfer->receive || transfer->receives))
    return REFUSE(call, "%s",
                  "`send` is set together with `receive` or `receives`; a send leaves `receive` NULL and `receives` 0");
  if (transfer->count && !buffer)
    return REFUSE(call, "`count` is %zu element%s, but `send` and `receive` are NULL; set one of the two",
                  transfer->count, ad_plural((long long)transfer->count));
  if (call->count > SIZE_MAX / 4 / call->element) return too_large(call);
  if (call->count && (uintptr_t)buffer % call->element)
    return REFUSE(call, "the buffer is not aligned for %s; align it to the size of an element",
                  ad_dtype_name(call->dtype));
  size_t bytes = call->count * call->element;
  if ((int)call->op == AD_OP_SEND)
    call->in = buffer, call->in_bytes = bytes;
  else
    call->out = transfer->receive, call->out_bytes = bytes;
  return AD_OK;
}

ad_status ad_call_prepare_transfer(const ad_transfer *transfer, int64_t rank, int64_t size, ad_call *out) {
  memset(out, 0, offsetof(ad_call, owned));
  out->op = (ad_collective_op)(transfer->receive || transfer->receives ? AD_OP_RECEIVE : AD_OP_SEND);
  out->operation = ad_comm_operation_of(out->op);
  out->dtype = transfer->dtype;
  out->count = transfer->count;
  out->tag = transfer->tag;
  out->source = AD_ANY_SOURCE;
  out->site = transfer->site ? transfer->site : AD_NO_SITE;
  AD_TRY(take_peer(transfer, rank, size, out));
  return take_side(transfer, out);
}

void ad_call_release(ad_call *call) {
  ad_release(call->owned);
  call->owned = NULL;
  call->owned_bytes = 0;
  ad_release(call->owned_nodes);
  call->owned_nodes = NULL;
  call->owned_nodes_bytes = 0;
}
