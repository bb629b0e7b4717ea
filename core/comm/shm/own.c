/* Calls in which each member does its own part. In small calls all inputs are in the slots. In all other such calls
 * some buffers are outside the shared memory file: they are read from their processes, or pass through staging in
 * rounds. Even and odd rounds use different halves of the staging buffer, so round p overwrites the values of round p -
 * 2. Three counters in each member's slot (staged, reduced, copied) say how many rounds the member has finished in each
 * of these ways. */
#include "comm/leaf_ranges.h"
#include "kernels/kernels.h"
#include "comm/shm/copy.h"
#include "comm/shm/error.h"
#include "comm/shm/memory.h"
#include "comm/shm/parts.h"
#include "comm/shm/pull.h"
#include "comm/shm/wait.h"
#include "comm/shm/work.h"

enum { SHM_BLOCK = 64 * 1024 };  // bytes of each member's input that are reduced at a time

static shm_slot *own_slot(const shm_call *c) { return ad_shm_slot(c, c->channel->index); }

// Returns the offset, in a staging buffer, of the half that a round uses.
static uint64_t half(uint32_t round) { return (round & 1) * (uint64_t)SHM_STAGE; }

/* ---- all inputs are in the slots: this member computes its outputs from them without waiting ---- */

// Reduces the full value, or this member's block of it, from the inputs in the slots.
static void reduce_alone(const shm_world *world, const shm_call *c) {
  const ad_call *call = c->call;
  const void *sources[AD_CALL_NODES_MAX];
  uint32_t own = c->channel->index, first, addends;
  int scatters = !ad_is_sliced(call->operation);
  size_t count = ad_call_result_size(call, own), start, n;
  for (size_t at = 0; at < count; at += n) {
    start = at;
    n = scatters ? ad_call_run(call, own, at, &start) : count;
    ad_shm_sources(world, c, start, sources);
    for (uint32_t r = 0; r < ad_call_results(call); r++) {
      ad_reducing how = ad_call_reducing(call, r, &first, &addends);
      void *out = (char *)call->out + (r * count + at) * call->out_element;
      ad_reduce(&out, 1, sources + first, addends, &how, n);
    }
  }
}

static uint32_t rank_of(const shm_call *c, uint32_t member) {
  return (uint32_t)ad_shape_rank(&c->channel->shape, member);
}

// Copies a segment. Returns 0 if its bytes are in another process and could not be read.
static int copy_segment(shm_world *world, shm_call *c, const shm_segment *segment) {
  // `from` is not compared with `to` here: the same address in another process is other memory.
  if (segment->pulled)
    return ad_shm_pull(world, c, rank_of(c, segment->source), (uint64_t)(uintptr_t)segment->from, segment->to,
                       segment->bytes);
  if (segment->from && segment->from != segment->to && segment->bytes)
    ad_shm_copy_out(c, segment->to, segment->from, segment->bytes);
  return 1;
}

// Copies all segments that do not pass through staging. Returns 0 if a segment could not be read; the next call of this
// function continues with that segment.
static int copy_unstaged(shm_world *world, shm_call *c) {
  uint32_t own = c->channel->index, segments = ad_shm_segments(world, c, own);
  for (; c->next_segment < segments; c->next_segment++) {
    shm_segment segment = ad_shm_segment(world, c, own, c->next_segment);
    if (!copy_segment(world, c, &segment)) return 0;
  }
  return 1;
}

int ad_shm_work_alone(shm_world *world, shm_call *c) {
  if (c->call->operation->reduces)
    reduce_alone(world, c);
  else
    copy_unstaged(world, c);
  return 1;
}

/* ---- rounds: when this member may start the next round ---- */

// A member's counter has this value after its last round, so that no rank waits for the member any more.
static const uint32_t all_rounds = UINT32_MAX;

static uint32_t divide_up(uint64_t n, uint64_t by) { return (uint32_t)((n + by - 1) / by); }

// Returns 1 if one of the counters of every other member is larger than `round`. `counter` is the byte offset of that
// counter in a slot.
static int others_past(const shm_call *c, size_t counter, int64_t round) {
  for (uint32_t i = 0; i < c->channel->members; i++) {
    const char *slot = (const char *)ad_shm_slot(c, i);
    const _Atomic uint32_t *value = (const _Atomic uint32_t *)(slot + counter);
    if (i != c->channel->index && atomic_load_explicit(value, memory_order_acquire) <= round) return 0;
  }
  return 1;
}

static int staged_past(const shm_call *c, int64_t round) { return others_past(c, offsetof(shm_slot, staged), round); }
static int reduced_past(const shm_call *c, int64_t round) { return others_past(c, offsetof(shm_slot, reduced), round); }
static int copied_past(const shm_call *c, int64_t round) { return others_past(c, offsetof(shm_slot, copied), round); }

// Publishes in *counter that this member has finished `rounds` of its `last` rounds.
static void advance(shm_world *world, const shm_call *c, _Atomic uint32_t *counter, uint32_t rounds, uint32_t last) {
  atomic_store_explicit(counter, rounds < last ? rounds : all_rounds, memory_order_release);
  ad_shm_wake(world, c->channel);
}

/* ---- copies in rounds ---- */

static uint32_t stream_rounds(const shm_slot *slot) {
  return slot->offer.place == SHM_STAGED ? divide_up(slot->stream, SHM_STAGE) : 0;
}

// Copies the bytes of the next round of this member's stream into staging. Returns 0 if no round is left, or if the
// round's half of the staging buffer is not free yet.
static int stage_stream(shm_world *world, shm_call *c) {
  shm_slot *slot = own_slot(c);
  uint32_t round = c->next_in;
  if (round >= c->own_rounds || !copied_past(c, (int64_t)round - 2)) return 0;
  uint64_t start = (uint64_t)round * SHM_STAGE, left = slot->stream - start;
  ad_shm_copy_stream(c, start, left < SHM_STAGE ? left : SHM_STAGE, (char *)c->staging + half(round));
  advance(world, c, &slot->staged, ++c->next_in, c->own_rounds);
  return 1;
}

// Copies, to this member's output, those bytes of a segment that pass through staging in this round.
static void copy_staged(const shm_world *world, const shm_call *c, const shm_segment *segment, uint32_t round) {
  uint64_t start = (uint64_t)round * SHM_STAGE, end = start + SHM_STAGE;
  uint64_t from = segment->stream > start ? segment->stream : start;
  uint64_t to = segment->stream + segment->bytes < end ? segment->stream + segment->bytes : end;
  if (from >= to) return;
  const char *staging = ad_shm_at(world, ad_shm_slot(c, segment->source)->offer.in + half(round));
  ad_shm_copy_out(c, segment->to + (from - segment->stream), staging + (from - start), to - from);
}

// Copies the bytes that other members staged for this member in its next round. Returns 0 if no round is left, or if
// not all members have staged the round.
static int pull(shm_world *world, shm_call *c) {
  uint32_t round = c->next_out, own = c->channel->index, segments = ad_shm_segments(world, c, own);
  if (round >= c->rounds || !staged_past(c, round)) return 0;
  for (uint32_t n = 0; n < segments; n++) {
    shm_segment segment = ad_shm_segment(world, c, own, n);
    if (!segment.from) copy_staged(world, c, &segment, round);
  }
  advance(world, c, &own_slot(c)->copied, ++c->next_out, c->rounds);
  return 1;
}

static int copy_in_rounds(shm_world *world, shm_call *c) {
  stage_stream(world, c);  // first, since the other members wait for it
  if (!copy_unstaged(world, c)) return 0;
  while (stage_stream(world, c) | pull(world, c)) continue;
  return c->next_in >= c->own_rounds && c->next_out >= c->rounds;
}

static void start_copies(shm_call *c) {
  c->own_rounds = stream_rounds(own_slot(c));
  for (uint32_t i = 0; i < c->channel->members; i++) {
    uint32_t rounds = stream_rounds(ad_shm_slot(c, i));
    if (rounds > c->rounds) c->rounds = rounds;
  }
}

/* ---- reductions: member k reduces part k, a piece of it each round ---- */

// Returns how many elements of each member's part are processed in one round: half a staging buffer must have room for
// so many elements of every part.
static size_t piece(const shm_call *c) {
  const ad_call *call = c->call;
  size_t element = call->element > call->out_element ? call->element : call->out_element;
  return SHM_STAGE / c->channel->members / SHM_LINE * SHM_LINE / element;
}

// Returns how many elements of part k are processed in this round; *at is set to the index of the first of them.
static size_t piece_at(const shm_call *c, uint32_t k, uint32_t round, size_t *at) {
  size_t count = ad_shm_part(c->call, k);
  *at = round * piece(c);
  if (*at >= count) return 0;
  return count - *at < piece(c) ? count - *at : piece(c);
}

// Returns how many elements of part k, from index `at` on and before index `end`, are contiguous in the full value;
// *whole is set to their start in the full value.
static size_t run_at(const shm_call *c, uint32_t k, size_t at, size_t end, size_t *whole) {
  size_t n = ad_shm_run(c->call, k, at, whole);
  return n < end - at ? n : end - at;
}

// Copies, into this member's staging buffer, its addends for the piece of part k that is reduced in this round.
static void stage_piece(const shm_call *c, uint32_t k, uint32_t round) {
  size_t at, element = c->call->element, end = piece_at(c, k, round, &at) + at, whole, n;
  char *to = (char *)c->staging + half(round) + k * piece(c) * element;
  for (; at < end; at += n, to += n * element) {
    n = run_at(c, k, at, end, &whole);
    ad_copy_shared(to, (const char *)c->call->in + whole * element, n * element);
  }
}

// Stages this member's addends of the next round. Returns 0 if no round is left, or if the round's half of the staging
// buffer is not free yet.
static int stage_pieces(shm_world *world, shm_call *c) {
  uint32_t round = c->next_in;
  if (round >= c->own_rounds || !reduced_past(c, (int64_t)round - 2)) return 0;
  for (uint32_t k = 0; k < c->channel->members; k++)
    if (k != c->channel->index) stage_piece(c, k, round);
  advance(world, c, &own_slot(c)->staged, ++c->next_in, c->own_rounds);
  return 1;
}

// Returns the address of the addends of `member` for a contiguous run of this rank's part. The run starts `inside`
// elements into the round's piece, and at element `whole` of the full value.
static const void *run_of(const shm_world *world, const shm_call *c, uint32_t member, uint32_t round, size_t inside,
                          size_t whole) {
  const shm_slot *slot = ad_shm_slot(c, member);
  size_t element = c->call->element, own = c->channel->index;
  if (member == own) return (const char *)c->call->in + whole * element;
  if (slot->offer.place == SHM_STAGED)
    return ad_shm_at(world, slot->offer.in + half(round) + (own * piece(c) + inside) * element);
  return ad_shm_at(world, slot->offer.in + whole * element);
}

// Lists in `outs` the addresses to which the sum of a run is written: this rank's output first, then the outputs of
// other members that this rank can write. Returns their number.
static size_t find_outs(const shm_world *world, const shm_call *c, size_t at, size_t whole, void **outs) {
  const ad_call *call = c->call;
  size_t count = 0, element = call->out_element;
  int scatters = !ad_is_sliced(call->operation);
  outs[count++] = (char *)call->out + (scatters ? at : whole) * element;
  if (scatters) return count;
  for (uint32_t i = 0; i < c->channel->members; i++) {
    uint64_t out = ad_shm_slot(c, i)->offer.out;
    if (out && i != c->channel->index) outs[count++] = ad_shm_at(world, out + whole * element);
  }
  return count;
}

// Copies the sum of a run into this rank's staging buffer; members whose outputs are outside the shared memory file
// fetch it there.
static void stage_sum(const shm_world *world, const shm_call *c, uint32_t round, size_t inside, const void *sum,
                      size_t n) {
  size_t element = c->call->out_element;
  if (c->any_elsewhere && ad_is_sliced(c->call->operation))
    ad_copy_shared(ad_shm_at(world, own_slot(c)->result + half(round) + inside * element), sum, n * element);
}

// Reduces the round's piece of this rank's part, one contiguous run after another.
static void reduce_runs(const shm_world *world, const shm_call *c, uint32_t round) {
  const void *sources[SHM_RANKS_MAX];
  void *outs[SHM_RANKS_MAX + 1];
  uint32_t members = c->channel->members, own = c->channel->index;
  size_t first, end = piece_at(c, own, round, &first), whole, n;
  end += first;
  for (size_t at = first; at < end; at += n) {
    n = run_at(c, own, at, end, &whole);
    for (uint32_t i = 0; i < members; i++) sources[i] = run_of(world, c, i, round, at - first, whole);
    ad_reduce(outs, find_outs(world, c, at, whole, outs), sources, members, &c->call->reducing, n);
    stage_sum(world, c, round, at - first, outs[0], n);
  }
}

// Reduces the piece of this rank's part that belongs to its next round. Returns 0 if no round is left, or if not all
// members are ready.
static int reduce_piece(shm_world *world, shm_call *c) {
  uint32_t round = c->next_reduce;
  if (round >= c->rounds || !staged_past(c, round) || !copied_past(c, (int64_t)round - 2)) return 0;
  reduce_runs(world, c, round);
  advance(world, c, &own_slot(c)->reduced, ++c->next_reduce, c->rounds);
  return 1;
}

// Copies the sums that the other members made in a round to this rank's output. Used only for an all_reduce, in which
// each part is contiguous.
static int fetch_pieces(shm_world *world, shm_call *c) {
  const ad_call *call = c->call;
  uint32_t round = c->next_out;
  if (round >= c->out_rounds || !reduced_past(c, round)) return 0;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    size_t at, whole, n = piece_at(c, k, round, &at), element = call->out_element;
    if (!n || k == c->channel->index) continue;
    ad_shm_run(call, k, at, &whole);
    char *to = (char *)call->out + whole * element;
    const char *sum = ad_shm_at(world, ad_shm_slot(c, k)->result + half(round));
    // In an in-place call, the output was just read to be staged, so its cache lines are in a cache, and it is written
    // through the caches.
    if (call->in == call->out)
      ad_copy(to, sum, n * element);
    else
      ad_shm_copy_out(c, to, sum, n * element);
  }
  advance(world, c, &own_slot(c)->copied, ++c->next_out, c->out_rounds);
  return 1;
}

/* ---- a reduce_scatter of pulled inputs: each member reads the inputs of its part, block by block ---- */

// Returns how many elements are reduced at a time; the staging buffer has room for so many elements of every member's
// input.
static size_t block(const shm_call *c) {
  size_t bytes = 4 * (size_t)SHM_STAGE / c->channel->members;
  return (bytes < SHM_BLOCK ? bytes : SHM_BLOCK) / SHM_LINE * SHM_LINE / c->call->element;
}

// Returns the address of `n` elements of a member's input, from element `whole` on, after reading them from the
// member's process if necessary; NULL if they could not be read.
static const void *pulled_run(shm_world *world, shm_call *c, uint32_t member, size_t whole, size_t n) {
  const shm_slot *slot = ad_shm_slot(c, member);
  size_t element = c->call->element;
  if (member == c->channel->index) return (const char *)c->call->in + whole * element;
  if (slot->offer.place != SHM_PULLED) return ad_shm_at(world, slot->offer.in + whole * element);
  char *to = (char *)c->staging + member * block(c) * element;
  return ad_shm_pull(world, c, rank_of(c, member), slot->offer.in + whole * element, to, n * element) ? to : NULL;
}

// Reduces this member's part, block after block. Returns 0 if an input could not be read; the next call of this
// function continues with the same block.
static int reduce_pulled(shm_world *world, shm_call *c) {
  const void *sources[SHM_RANKS_MAX];
  void *outs[SHM_RANKS_MAX + 1];
  uint32_t members = c->channel->members, own = c->channel->index;
  size_t count = ad_shm_part(c->call, own), whole, n;
  for (; c->reduced < count; c->reduced += n) {
    size_t left = count - c->reduced;
    n = run_at(c, own, c->reduced, c->reduced + (left < block(c) ? left : block(c)), &whole);
    for (uint32_t i = 0; i < members; i++)
      if (!(sources[i] = pulled_run(world, c, i, whole, n))) return 0;
    ad_reduce(outs, find_outs(world, c, c->reduced, whole, outs), sources, members, &c->call->reducing, n);
  }
  return 1;
}

static int reduce_in_rounds(shm_world *world, shm_call *c) {
  while (stage_pieces(world, c) | reduce_piece(world, c) | fetch_pieces(world, c)) continue;
  return c->next_in >= c->own_rounds && c->next_reduce >= c->rounds && c->next_out >= c->out_rounds;
}

// Computes the number of rounds of a reduction, and takes a staging buffer if the reduction needs one.
static ad_status start_reduction(shm_world *world, shm_call *c) {
  shm_slot *slot = own_slot(c);
  if (c->any_pulled) return c->staging ? AD_OK : ad_shm_take_staging(world, &c->staging);
  for (uint32_t k = 0; k < c->channel->members; k++) {
    uint32_t rounds = divide_up(ad_shm_part(c->call, k), piece(c));
    if (rounds > c->rounds) c->rounds = rounds;
  }
  c->own_rounds = slot->offer.place == SHM_STAGED ? c->rounds : 0;
  if (!ad_is_sliced(c->call->operation) || !c->any_elsewhere) return AD_OK;
  // Some output is outside the shared memory file: every member also copies its sums into staging.
  c->out_rounds = slot->offer.out ? 0 : c->rounds;
  if (!c->staging) AD_TRY(ad_shm_take_staging(world, &c->staging));
  slot->result = (uint64_t)((char *)c->staging - world->base) + 2 * SHM_STAGE;
  return AD_OK;
}

/* ---- carrying out any call in rounds ---- */

// Prepares this member's part. If there is no memory, returns 0 and sets the world's error.
static int start(shm_world *world, shm_call *c) {
  ad_status status = AD_OK;
  if (c->call->operation->reduces)
    status = start_reduction(world, c);
  else
    start_copies(c);
  if (status) {
    ad_shm_raise_own(world, status);
    return 0;
  }
  c->started = 1;
  shm_slot *slot = own_slot(c);
  if (!c->own_rounds) advance(world, c, &slot->staged, 0, 0);
  if (c->call->operation->reduces && !c->out_rounds) advance(world, c, &slot->copied, 0, 0);
  return 1;
}

static int move_own(shm_world *world, shm_call *c) {
  if (!c->call->operation->reduces) return copy_in_rounds(world, c);
  return c->any_pulled ? reduce_pulled(world, c) : reduce_in_rounds(world, c);
}

static int all_done(shm_call *c) {
  for (; c->complete < c->channel->members; c->complete++)
    if (!atomic_load_explicit(&ad_shm_slot(c, c->complete)->done, memory_order_acquire)) return 0;
  return 1;
}

int ad_shm_work_rounds(shm_world *world, shm_call *c) {
  if (!c->started && !start(world, c)) return 0;
  if (!c->finished) {
    c->finished = move_own(world, c);
    if (c->finished) advance(world, c, &own_slot(c)->done, 1, 2);
  }
  return all_done(c);
}
