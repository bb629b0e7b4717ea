/* Finds which heads and which positions of an array [batch, seq, heads * head_dim] a rank has. */
#include "tensor/heads.h"

#include <inttypes.h>
#include "tensor/tape.h"

head_sizes ad_head_sizes(const ad_tensor *out, int64_t head_dim) {
  const ad_shape *local = &out->array.local;
  head_sizes sizes = {(size_t)local->dim[0], (size_t)local->dim[1], (size_t)local->dim[2], 0, (size_t)head_dim};
  sizes.heads = sizes.width / sizes.head_dim;
  return sizes;
}

ad_status ad_check_heads_of(const ad_tape *tape, const ad_tensor *out, const ad_array *array, int64_t head_dim) {
  int64_t width = array->shape.dim[2];
  if (head_dim < 1 || width % head_dim)
    return ad_fail(AD_INVALID,
                   "%s: `%s` got head_dim %" PRId64 ", which does not divide the last dimension, %" PRId64
                   "; give a divisor",
                   out->site, out->op->name, head_dim, width);
  ad_span spans[POSITION_SPANS];
  int count = ad_layout_spans(&array->layout, 2, width, ad_comm_rank(ad_tape_comm(tape)), spans, POSITION_SPANS);
  for (int i = 0; i < count && i < POSITION_SPANS; i++) {
    if (spans[i].first % head_dim || spans[i].count % head_dim)
      return ad_fail(AD_INVALID,
                     "%s: in `%s` this rank's part [%" PRId64 ", %" PRId64
                     ") of the last dimension has only a part of a head of %" PRId64 " elements; divide the %" PRId64
                     " heads evenly among the ranks",
                     out->site, out->op->name, spans[i].first, (spans[i].first + spans[i].count), head_dim,
                     (width / head_dim));
  }
  return AD_OK;
}

ad_status ad_find_positions(const ad_tensor *out, const ad_array *array, int64_t rank, positions *to) {
  to->span_count = ad_layout_spans(&array->layout, 1, array->shape.dim[1], rank, to->span, POSITION_SPANS);
  to->count = 0;
  if (to->span_count > POSITION_SPANS)
    return ad_fail(AD_INVALID,
                   "%s: `%s` got a sequence with %d separate pieces on this rank, but supports at most %d; shard the "
                   "sequence over fewer axes",
                   out->site, out->op->name, to->span_count, POSITION_SPANS);
  for (int i = 0; i < to->span_count; i++) to->count += (size_t)to->span[i].count;
  return AD_OK;
}

ad_status ad_find_positions_on(const ad_tape *tape, const ad_tensor *out, const ad_array *array, positions *to) {
  AD_TRY(ad_find_positions(out, array, ad_comm_rank(tape->comm), to));
  for (int i = 0; i < to->span_count; i++) to->span[i].first += tape->position;
  return AD_OK;
}

ad_status ad_check_heads(const ad_tape *tape, const ad_tensor *out, int64_t head_dim) {
  return ad_check_heads_of(tape, out, &out->array, head_dim);
}
