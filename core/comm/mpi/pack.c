/* Packs calls with segments and calls with several results for all members, and gives an input buffer to calls to
 * which this rank contributes no value. A block of a call with segments is scattered over the full value, and a slice
 * of several results is scattered over the results, but a message is contiguous. So the values are moved by a second,
 * packed call, whose blocks and slices are contiguous in memory of the backend. */
#include <string.h>
#include "base/memory.h"
#include "comm/mpi/move.h"
#include "comm/shm/parts.h"

static size_t starts_bytes(const ad_call *call) { return (call->members + 1) * sizeof(size_t); }

/* Copies the blocks of all members between the full value `whole`, where each block is scattered, and `blocks`,
 * where each is contiguous: to `blocks` if `to_blocks` is 1, else to `whole`. */
static void copy_runs(const ad_call *call, char *whole, char *blocks, int to_blocks) {
  size_t element = call->element, run, in_whole;
  for (uint32_t k = 0; k < call->members; k++) {
    for (size_t at = 0; (run = ad_call_run(call, k, at, &in_whole)); at += run, blocks += run * element) {
      char *there = whole + in_whole * element;
      memcpy(to_blocks ? blocks : there, to_blocks ? there : blocks, run * element);
    }
  }
}

/* Makes the packed call a call with counts in place of segments. `starts` has room for the offsets of the blocks;
 * the blocks are in memory after the offsets. */
static void describe_blocks(mpi_call *c, size_t *starts) {
  ad_call *packed = &c->packed;
  starts[0] = 0;
  for (uint32_t k = 0; k < packed->members; k++) starts[k + 1] = starts[k] + ad_call_block(c->asked, k);
  packed->segment_count = 0;
  packed->segment_starts = packed->part_starts = NULL;
  if (packed->operation->in == AD_BUFFER_BLOCKS) {
    packed->in_starts = starts;
    packed->in = starts + packed->members + 1;
  } else {
    packed->out_starts = starts;
    packed->out = starts + packed->members + 1;
  }
}

/* Returns 1 if all members get several results of this call, and each result is made in slices. */
static int has_sliced_results(const ad_call *call) {
  return ad_call_results(call) > 1 && ad_is_sliced(call->operation);
}

static ad_status pack_leaves(mpi_call *c) {
  const ad_call *call = c->asked;
  int gives = ad_call_addends(call, call->index) != 0;
  if (gives && !has_sliced_results(call)) return AD_OK;
  c->packed = *call;
  c->call = &c->packed;
  if (!gives) c->packed.in = call->out;  // this buffer is never read; only the offsets of slices in it are used
  if (!has_sliced_results(call)) return AD_OK;
  AD_TRY(ad_make_room(&c->pack, &c->pack_bytes, call->out_bytes));
  c->packed.out = c->pack;
  return AD_OK;
}

ad_status ad_mpi_pack(mpi_call *c) {
  const ad_call *call = c->asked;
  if (!call->segment_count) return pack_leaves(c);
  int scatters = call->operation->in == AD_BUFFER_BLOCKS;
  AD_TRY(ad_make_room(&c->pack, &c->pack_bytes, starts_bytes(call) + (scatters ? call->in_bytes : call->out_bytes)));
  c->packed = *call;
  c->call = &c->packed;
  describe_blocks(c, (size_t *)(void *)c->pack);
  size_t value = scatters ? ad_call_addend(call) * call->element : 0;
  for (size_t at = 0; scatters && at < call->in_bytes; at += value)
    copy_runs(call, (char *)(uintptr_t)call->in + at, c->pack + starts_bytes(call) + at, 1);
  return AD_OK;
}

/* Copies the slices of the packed call's results to their offsets in each result of the caller's call. */
static void unpack_results(mpi_call *c) {
  const ad_call *call = c->asked;
  const char *from = c->pack;
  for (uint32_t k = 0; k < call->members; k++) {
    size_t start = 0, bytes = ad_shm_part(call, k) * call->out_element;
    if (bytes) ad_shm_run(call, k, 0, &start);
    for (uint32_t r = 0; r < ad_call_results(call); r++, from += bytes)
      memcpy((char *)call->out + (r * call->count + start) * call->out_element, from, bytes);
  }
}

void ad_mpi_unpack(mpi_call *c) {
  const ad_call *call = c->asked;
  if (has_sliced_results(call)) unpack_results(c);
  if (!call->segment_count || call->operation->in == AD_BUFFER_BLOCKS || !call->out_bytes) return;
  copy_runs(call, call->out, c->pack + starts_bytes(call), 0);
}
