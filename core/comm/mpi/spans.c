/* Computes which bytes of this rank's buffers a call sends to each member or receives from it. */
#include "comm/mpi/spans.h"

#include "comm/mpi/mail.h"
#include "comm/shm/parts.h"

static int is_sliced(const ad_call *call) { return call->op == AD_ALL_REDUCE || call->op == AD_BROADCAST; }
int ad_mpi_has_parts(const ad_call *call) { return is_sliced(call) || call->op == AD_REDUCE_SCATTER; }

int ad_mpi_is_small(const ad_call *call) {
  if (is_sliced(call)) return call->count * call->element <= MAIL_INLINE;
  return call->op == AD_REDUCE_SCATTER ? call->in_bytes <= MAIL_INLINE : call->op == AD_BARRIER;
}

mpi_span ad_mpi_span(const void *memory, size_t element, size_t start, size_t count) {
  if (!memory || !count) return (mpi_span){0};
  return (mpi_span){(char *)(uintptr_t)memory + start * element, count * element};
}

// Returns member k's part of `memory`; in a small all_reduce or broadcast, the full value.
static mpi_span part(const ad_call *call, const void *memory, size_t element, uint32_t k) {
  size_t start = 0, count = ad_shm_part(call, k);
  if (ad_mpi_is_small(call) && is_sliced(call)) return ad_mpi_span(memory, element, 0, call->count);
  if (count) ad_shm_run(call, k, 0, &start);
  return ad_mpi_span(memory, element, start, count);
}

mpi_span ad_mpi_in_part(const ad_call *call, uint32_t k) { return part(call, call->in, call->element, k); }
mpi_span ad_mpi_out_part(const ad_call *call, uint32_t k) { return part(call, call->out, call->out_element, k); }

int ad_mpi_contributes(const ad_call *call, uint32_t k) {
  return ad_mpi_has_parts(call) && (call->op != AD_BROADCAST || call->root == k);
}

mpi_span ad_mpi_addends_for(const ad_call *call, uint32_t k) {
  return ad_mpi_contributes(call, call->index) ? ad_mpi_in_part(call, k) : (mpi_span){0};
}

mpi_span ad_mpi_result_for(const ad_call *call, uint32_t k) {
  size_t start;
  if (call->op == AD_ALL_TO_ALL) {
    start = ad_call_in_start(call, k);
    return ad_mpi_span(call->in, call->element, start, ad_call_in_start(call, k + 1) - start);
  }
  if (call->op == AD_ALL_GATHER) return ad_mpi_span(call->in, call->element, 0, call->in_bytes / call->element);
  if (!is_sliced(call) || ad_mpi_is_small(call)) return (mpi_span){0};
  if (call->op == AD_BROADCAST && k == call->root) return (mpi_span){0};  // the root has the full value already
  return ad_mpi_out_part(call, call->index);
}

mpi_span ad_mpi_result_from(const ad_call *call, uint32_t k) {
  size_t start;
  if (call->op == AD_ALL_TO_ALL || call->op == AD_ALL_GATHER) {
    start = ad_call_out_start(call, k);
    return ad_mpi_span(call->out, call->out_element, start, ad_call_out_start(call, k + 1) - start);
  }
  if (!is_sliced(call) || ad_mpi_is_small(call)) return (mpi_span){0};
  if (call->op == AD_BROADCAST && call->index == call->root) return (mpi_span){0};
  return ad_mpi_out_part(call, k);
}

mpi_span ad_mpi_result_of(const ad_call *call, uint32_t k) {
  if (is_sliced(call)) return ad_mpi_out_part(call, k);
  size_t start = ad_call_out_start(call, k);
  return ad_mpi_span(call->out, call->out_element, start, ad_call_out_start(call, k + 1) - start);
}

int ad_mpi_is_inline(const ad_call *call, size_t bytes) {
  return (call->op == AD_ALL_GATHER || call->op == AD_ALL_TO_ALL) && bytes <= MAIL_INLINE;
}

int ad_mpi_is_for_all(const ad_call *call, uint32_t k) {
  if (is_sliced(call)) return 1;
  size_t block = ad_call_out_start(call, k + 1) - ad_call_out_start(call, k);
  return call->op == AD_ALL_GATHER && !ad_mpi_is_inline(call, block * call->out_element);
}

size_t ad_mpi_sent_bytes(const ad_call *call, uint32_t k) {
  size_t bytes = 0;
  for (size_t i = 0; i < call->message_count; i++)
    if (call->messages[i].send && call->messages[i].peer == k) bytes += call->messages[i].count * call->element;
  return bytes;
}
