/* Carries out calls whose buffers are all in the shared memory file. The work is divided into parts, one for each
 * member, and each part into chunks that fit the caches. A member that is inside a call works on chunks of its own
 * part, then on chunks of other members' parts. So no member has to wait for a member that computes or is not
 * scheduled. */
#include "comm/shm/work.h"

#include "comm/leaf_ranges.h"
#include "kernels/kernels.h"
#include "comm/shm/copy.h"
#include "comm/shm/parts.h"
#include "comm/shm/wait.h"

static const size_t chunk_min = 32 << 10, chunk_max = 128 << 10, copy_chunk_max = 1 << 20;

/* ---- chunks of reductions ---- */

// Returns the size in bytes of a chunk of a reduction or a copy: about a quarter of the part, but not tiny and not
// larger than `most`, which fits the caches.
static size_t chunk_bytes(size_t part_bytes, size_t most) {
  size_t bytes = (part_bytes / 4 + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
  return bytes < chunk_min ? chunk_min : bytes > most ? most : bytes;
}

static size_t reduce_chunk(const ad_call *call, size_t part) {
  return chunk_bytes(part * call->element, chunk_max) / call->element;
}

uint32_t ad_shm_sources(const shm_world *world, const shm_call *c, size_t whole, const void **sources) {
  const ad_call *call = c->call;
  uint32_t count = 0, members = c->channel->members;
  size_t start = whole * call->element;
  if (!call->results) {
    for (; count < members; count++) sources[count] = ad_shm_at(world, ad_shm_slot(c, count)->offer.in + start);
    return count;
  }
  size_t value = ad_call_addend(call) * call->element;
  for (uint32_t i = 0; i < members; i++) {
    const char *at = ad_shm_at(world, ad_shm_slot(c, i)->offer.in + start);
    uint32_t values = ad_call_addends(call, i);
    if (values) sources[count++] = at;
    for (uint32_t p = 1; p < values; p++) sources[count++] = at + p * value;
  }
  return count;
}

// Lists in `outs` the addresses to which the sum of element `at` of part k (element `whole` of the full value) is
// written in result number `result`. Returns their number.
static uint32_t list_outs(const shm_world *world, const shm_call *c, uint32_t k, size_t at, size_t whole,
                          uint32_t result, void **outs) {
  const ad_call *call = c->call;
  int for_all = ad_is_sliced(call->operation);
  size_t element = call->out_element, in_result = for_all ? whole : at;
  uint32_t count = 0;
  for (uint32_t i = for_all ? 0 : k; i < (for_all ? c->channel->members : k + 1); i++) {
    size_t start = (result ? result * ad_call_result_size(call, i) : 0) + in_result;
    outs[count++] = ad_shm_at(world, ad_shm_slot(c, i)->offer.out + start * element);
  }
  return count;
}

// Reduces elements [at, at + n) of part k, which start at element `whole` of the full value.
static void reduce_run(const shm_world *world, const shm_call *c, uint32_t k, size_t at, size_t whole, size_t n) {
  const void *sources[AD_CALL_NODES_MAX];
  void *outs[SHM_RANKS_MAX];
  ad_shm_sources(world, c, whole, sources);
  for (uint32_t r = 0; r < ad_call_results(c->call); r++) {
    uint32_t first, count, out_count = list_outs(world, c, k, at, whole, r, outs);
    ad_reducing how = ad_call_reducing(c->call, r, &first, &count);
    how.past = c->past;
    ad_reduce(outs, out_count, sources + first, count, &how, n);
  }
}

// Reduces chunk `number` of part k, one contiguous run after another.
static void run_reduce_chunk(const shm_world *world, const shm_call *c, uint32_t k, uint32_t number) {
  size_t count = ad_shm_part(c->call, k), chunk = reduce_chunk(c->call, count), at = number * chunk, whole, n;
  size_t end = count - at < chunk ? count : at + chunk;
  for (; at < end; at += n) {
    n = ad_shm_run(c->call, k, at, &whole);
    if (n > end - at) n = end - at;
    reduce_run(world, c, k, at, whole, n);
  }
}

/* ---- chunks of copies: each segment has its own chunks, and the last may be short ---- */

static uint32_t segment_chunks(size_t bytes) {
  size_t chunk = chunk_bytes(bytes, copy_chunk_max);
  return (uint32_t)((bytes + chunk - 1) / chunk);
}

// Copies chunk `number` of the segments that member k receives.
static void run_copy_chunk(const shm_world *world, const shm_call *c, uint32_t k, uint32_t number) {
  uint32_t n = 0;
  shm_segment segment = ad_shm_segment(world, c, k, 0);
  for (uint32_t chunks; number >= (chunks = segment_chunks(segment.bytes)); number -= chunks)
    segment = ad_shm_segment(world, c, k, ++n);
  size_t chunk = chunk_bytes(segment.bytes, copy_chunk_max), start = number * chunk;
  if (segment.from == segment.to) return;
  size_t bytes = segment.bytes - start < chunk ? segment.bytes - start : chunk;
  ad_shm_copy_out(c, segment.to + start, segment.from + start, bytes);
}

/* ---- counting chunks: each member counts the chunks of its own part, from its own call ---- */

static uint32_t reduce_chunks(const ad_call *call) {
  size_t count = ad_shm_part(call, call->index), chunk = reduce_chunk(call, count);
  return (uint32_t)((count + chunk - 1) / chunk);
}

// Returns the number of chunks of all segments that this member receives.
static uint32_t copy_chunks(const ad_call *call) {
  uint32_t chunks = 0;
  uint32_t pieces = ad_is_of_messages(call->operation) ? 0 : ad_shm_pieces(call, call->index);
  for (uint32_t n = 0; n < pieces; n++)
    chunks += segment_chunks(ad_shm_piece(call, call->index, n).count * call->element);
  for (size_t i = 0; i < call->message_count; i++)
    if (!call->messages[i].send) chunks += segment_chunks(call->messages[i].count * call->element);
  return chunks;
}

uint32_t ad_shm_chunks(const ad_call *call) {
  return call->operation->reduces ? reduce_chunks(call) : copy_chunks(call);
}

/* ---- working on chunks until none is left ---- */

// Works on chunks of member k's part, until none of them is left.
static void work_on(shm_world *world, shm_call *c, uint32_t k) {
  shm_slot *slot = ad_shm_slot(c, k);
  uint32_t chunks = slot->chunks, number, finished = 0;
  while (atomic_load_explicit(&slot->claimed, memory_order_relaxed) < chunks &&
         (number = atomic_fetch_add_explicit(&slot->claimed, 1, memory_order_relaxed)) < chunks) {
    if (c->call->operation->reduces)
      run_reduce_chunk(world, c, k, number);
    else
      run_copy_chunk(world, c, k, number);
    finished = 1;
    atomic_fetch_add_explicit(&slot->done, 1, memory_order_release);
  }
  if (finished) ad_shm_wake(world, c->channel);
}

static int all_done(shm_call *c) {
  for (; c->complete < c->channel->members; c->complete++) {
    const shm_slot *slot = ad_shm_slot(c, c->complete);
    if (atomic_load_explicit(&slot->done, memory_order_acquire) < slot->chunks) return 0;
  }
  return 1;
}

int ad_shm_work_chunks(shm_world *world, shm_call *c) {
  uint32_t members = c->channel->members, own = c->channel->index;
  if (!c->next_reduce++) work_on(world, c, own);
  if (all_done(c)) return 1;
  // Members that are running will soon finish their parts; to take their chunks immediately would only move cache lines
  // between cores. So this rank first waits a little.
  if (c->patience) {
    c->patience--;
    return 0;
  }
  for (uint32_t i = 1; i < members; i++) work_on(world, c, (own + i) % members);
  return all_done(c);
}
