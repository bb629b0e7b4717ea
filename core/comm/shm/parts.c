/* Computes which member reduces which part of a reduction. */
#include "comm/shm/parts.h"

#include "comm/shm/control.h"

// Sets *start and *end to the range of elements that member k computes, of a value that all members get.
static void slice(const ad_call *call, uint32_t k, size_t *start, size_t *end) {
  // Parts begin at cache lines, so that no two members write to the same line.
  size_t element = call->element < call->out_element ? call->element : call->out_element;
  size_t unit = SHM_LINE / element, units = (call->count + unit - 1) / unit;
  size_t from = units * k / call->members * unit, to = units * (k + 1) / call->members * unit;
  *start = from < call->count ? from : call->count;
  *end = to < call->count ? to : call->count;
}

size_t ad_shm_part(const ad_call *call, uint32_t k) {
  size_t start, end;
  if (!ad_is_sliced(call->operation)) return ad_call_block(call, k);
  slice(call, k, &start, &end);
  return end - start;
}

size_t ad_shm_run(const ad_call *call, uint32_t k, size_t at, size_t *whole) {
  size_t start, end;
  if (!ad_is_sliced(call->operation)) return ad_call_run(call, k, at, whole);
  slice(call, k, &start, &end);
  *whole = start + at;
  return end - start - at;
}
