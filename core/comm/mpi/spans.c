/* Computes which bytes of this rank's buffers a call sends to each member or receives from it. */
#include "comm/mpi/spans.h"

#include "comm/leaf_ranges.h"
#include "comm/mpi/mail.h"
#include "comm/shm/parts.h"

int ad_mpi_has_parts(const ad_call *call) { return call->operation->reduces || ad_is_sliced(call->operation); }

int ad_mpi_is_small(const ad_call *call) {
  const ad_comm_operation *operation = call->operation;
  if (call->results && !ad_call_is_even(call)) return 0;  // all members get the same answer, whatever each contributes
  if (ad_is_sliced(operation)) return call->count * call->element <= MAIL_INLINE;
  return operation->reduces ? call->in_bytes <= MAIL_INLINE : operation->in == AD_BUFFER_NONE;
}

mpi_span ad_mpi_span(const void *memory, size_t element, size_t start, size_t count) {
  if (!memory || !count) return (mpi_span){0};
  return (mpi_span){(char *)(uintptr_t)memory + start * element, count * element};
}

// Returns member k's part of `memory`; in a small call whose value all members get, the full value.
static mpi_span part(const ad_call *call, const void *memory, size_t element, uint32_t k) {
  size_t start = 0, count = ad_shm_part(call, k);
  if (ad_mpi_is_small(call) && ad_is_sliced(call->operation)) return ad_mpi_span(memory, element, 0, call->count);
  if (count) ad_shm_run(call, k, 0, &start);
  return ad_mpi_span(memory, element, start, count);
}

mpi_span ad_mpi_in_part(const ad_call *call, uint32_t k) { return part(call, call->in, call->element, k); }
// If there are several results, the k-th slices of all of them are contiguous (ad_mpi_pack).
mpi_span ad_mpi_out_part(const ad_call *call, uint32_t k) {
  return part(call, call->out, call->out_element * ad_call_results(call), k);
}

int ad_mpi_contributes(const ad_call *call, uint32_t k) {
  return ad_mpi_has_parts(call) && (!call->operation->in_on_root || call->root == k) && ad_call_addends(call, k);
}

mpi_span ad_mpi_addends_for(const ad_call *call, uint32_t k) {
  return ad_mpi_contributes(call, call->index) ? ad_mpi_in_part(call, k) : (mpi_span){0};
}

int ad_mpi_has_value(const ad_call *call, uint32_t k) {
  return ad_is_sliced(call->operation) && call->operation->in_on_root && k == call->root;
}

mpi_span ad_mpi_result_for(const ad_call *call, uint32_t k) {
  if (!ad_mpi_has_parts(call)) {
    ad_comm_piece piece = ad_call_piece(call, call->index, k, 0);
    return ad_mpi_span(call->in, call->element, piece.in, piece.count);
  }
  if (!ad_is_sliced(call->operation) || ad_mpi_is_small(call) || ad_mpi_has_value(call, k)) return (mpi_span){0};
  return ad_mpi_out_part(call, call->index);
}

mpi_span ad_mpi_result_from(const ad_call *call, uint32_t k) {
  if (!ad_mpi_has_parts(call)) {
    ad_comm_piece piece = ad_call_piece(call, k, call->index, 0);
    return ad_mpi_span(call->out, call->out_element, piece.out, piece.count);
  }
  if (!ad_is_sliced(call->operation) || ad_mpi_is_small(call) || ad_mpi_has_value(call, call->index))
    return (mpi_span){0};
  return ad_mpi_out_part(call, k);
}

mpi_span ad_mpi_result_of(const ad_call *call, uint32_t k) {
  if (ad_is_sliced(call->operation)) return ad_mpi_out_part(call, k);
  size_t start = ad_call_out_start(call, k);
  return ad_mpi_span(call->out, call->out_element, start, ad_call_out_start(call, k + 1) - start);
}

int ad_mpi_is_inline(const ad_call *call, size_t bytes) { return !ad_mpi_has_parts(call) && bytes <= MAIL_INLINE; }

int ad_mpi_is_for_all(const ad_call *call, uint32_t k) {
  if (ad_is_sliced(call->operation)) return 1;
  size_t block = ad_call_out_start(call, k + 1) - ad_call_out_start(call, k);
  return ad_gives_all_the_same(call->operation) && !ad_mpi_is_inline(call, block * call->out_element);
}

size_t ad_mpi_sent_bytes(const ad_call *call, uint32_t k) {
  size_t bytes = 0;
  for (size_t i = 0; i < call->message_count; i++)
    if (call->messages[i].send && call->messages[i].peer == k) bytes += call->messages[i].count * call->element;
  return bytes;
}
