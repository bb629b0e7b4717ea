/* The life of a call in its group's channel: every member publishes it and finds out whether all members' calls
 * match. Nothing is reduced here; only small inputs are copied, into the slot or a staging buffer. */
#include "comm/shm/call.h"

#include <string.h>
#include "base/error.h"
#include "base/text.h"
#include "comm/leaf_ranges.h"
#include "kernels/kernels.h"
#include "comm/shm/copy.h"
#include "comm/shm/error.h"
#include "comm/shm/memory.h"
#include "comm/shm/wait.h"
#include "comm/shm/work.h"
#include "comm/words.h"

enum {
  SHM_INLINE_IN_FILE = 512,  // an input of at most so many bytes is copied into the slot even if it is in the file
  SHM_PULL_MIN = 16 * 1024   // least bytes of a piece that is worth pulling from a peer; see is_worth_pulling
};

/* ---- publishing this rank's call in its slot ---- */

// Returns how many bytes this member sends to other members.
static size_t sent_bytes(const ad_call *call) {
  if (!ad_is_of_messages(call->operation)) return call->in_bytes;
  size_t bytes = 0;
  for (size_t i = 0; i < call->message_count; i++)
    if (call->messages[i].send) bytes += call->messages[i].count * call->element;
  return bytes;
}

// Returns 1 if the buffers of all messages that an exchange sends (`sends` 1) or receives (0) are in the shared memory
// file.
static int messages_in_file(const shm_world *world, const ad_call *call, int sends) {
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    const void *buffer = sends ? message->send : message->receive;
    size_t bytes = message->count * call->element;
    if (buffer && bytes && !ad_shm_offset(world, buffer, bytes)) return 0;
  }
  return 1;
}

static inline int input_in_file(const shm_world *world, const ad_call *call) {
  if (ad_is_of_messages(call->operation)) return messages_in_file(world, call, 1);
  return !call->in_bytes || ad_shm_offset(world, call->in, call->in_bytes) != 0;
}

// Returns the offset of the output in the shared memory file, or 0 if the output is not in the file. An empty output
// counts as in the file, since nothing has to be written outside the file.
static inline uint64_t place_output(const shm_world *world, const ad_call *call) {
  if (ad_is_of_messages(call->operation)) return messages_in_file(world, call, 0) ? world->control->regions_start : 0;
  return call->out_bytes ? ad_shm_offset(world, call->out, call->out_bytes) : world->control->regions_start;
}

// Refuses a call with leaf ranges in which a member contributes or gets several values, or none, if its buffers are not
// in the shared memory file: only the code for calls whose buffers are all in the file sums such values.
static ad_status check_place(const shm_world *world, const ad_call *call) {
  if (!call->results || ad_call_is_even(call)) return AD_OK;
  int in_file = input_in_file(world, call) != 0;
  if (in_file && place_output(world, call)) return AD_OK;
  return ad_fail(AD_INVALID,
                 "%s: in `%s`, `%s` is not memory of ad_comm_alloc, but must be if a member has several sums of "
                 "leaves, or none; allocate the buffer with ad_comm_alloc",
                 call->site, call->operation->name, in_file ? "out" : "in");
}

// Returns the number of pieces into which the readers of an input divide it. A member reads each piece with one system
// call.
static size_t pieces(const ad_call *call) {
  const ad_comm_operation *operation = call->operation;
  if (ad_is_of_messages(operation)) return call->message_count;
  int is_for_one = operation->in == AD_BUFFER_BLOCKS || operation->in == AD_BUFFER_PAIRS;
  return (operation->reduces || is_for_one ? call->members : 1) * ad_call_parts(call);
}

// Returns 1 if it is faster to read an input of `bytes` bytes from its process ("pull") than to pass it through
// staging, as measured with 2 to 8 ranks on 2 cores. If several ranks share a core, staging costs less, since the rank
// that stages and the rank that fetches share a cache. The addends of a sum that all members get are never pulled.
// Ranks would have to pull twice, the second time from cache lines that a peer has just read; in place, that was slower
// than staging up to 1 MiB, and at every size if several ranks share a core.
static int is_worth_pulling(const shm_world *world, const ad_call *call, size_t bytes) {
  size_t least = !world->crowded ? 1 : call->operation->reduces ? 16 : 8;
  int sums_for_all = call->operation->reduces && ad_is_sliced(call->operation);
  return !sums_for_all && bytes / pieces(call) >= least * SHM_PULL_MIN;
}

// Decides where the other members find this member's input. If all inputs are in the slots, the call is complete as
// soon as all members have published it, but then every member reads all inputs. Measured with 2 to 8 ranks, an input
// in the slot is faster up to SHM_INLINE_IN_FILE bytes. If the input or the output is outside the shared memory file,
// it is faster for every input that fits into the slot, since the alternative is staging.
static shm_place place_input(const shm_world *world, const ad_call *call, const shm_offer *offer, size_t bytes) {
  int in_file = input_in_file(world, call);
  if (bytes <= (in_file && offer->out ? SHM_INLINE_IN_FILE : SHM_PAYLOAD)) return SHM_INLINE;
  if (in_file) return SHM_SHARED;
  return is_worth_pulling(world, call, bytes) && world->pulls ? SHM_PULLED : SHM_STAGED;
}

// Returns 1 if the call needs a staging buffer. A reduction of pulled inputs reads them into a staging buffer first.
static int needs_staging(const ad_call *call, const shm_offer *offer) {
  return offer->place == SHM_STAGED || (offer->place == SHM_PULLED && call->operation->reduces);
}

// Returns the value of the offer's field `in`: the input's offset in the shared memory file or, if the input is pulled,
// its address. If the place is SHM_INLINE, `copy` is the copy of the whole input.
static uint64_t input_at(const shm_world *world, const shm_call *c, shm_place place, const void *copy) {
  if (place == SHM_PULLED) return (uint64_t)(uintptr_t)c->call->in;
  const void *in = place == SHM_INLINE ? copy : place == SHM_STAGED ? c->staging : c->call->in;
  return (uint64_t)((const char *)in - world->base);
}

// Sets *out to a staging buffer for the whole input, or to NULL. It does so only for an operation that copies and whose
// input would otherwise pass through staging in at most SHM_STAGING / SHM_STAGE rounds. The caller fills the buffer
// before it publishes the call, so the readers need not wait for rounds.
static ad_status stage_at_once(shm_world *world, const shm_call *c, size_t bytes, shm_offer *offer, void **out) {
  *out = NULL;
  if (c->call->operation->reduces || offer->place != SHM_STAGED || bytes > SHM_STAGING) return AD_OK;
  AD_TRY(ad_shm_keep_staging(world, c, out));
  if (*out) offer->place = SHM_INLINE;
  return AD_OK;
}

// Sets *out to memory for the call's table of counts or messages: in the slot if the table fits, else in the shared
// memory file; the memory is kept until the slot is used again.
static ad_status place_table(shm_world *world, shm_call *c, shm_slot *slot, size_t bytes, void **out) {
  void **kept = &c->channel->tables[c->sequence % SHM_RING];
  if (*kept) ad_shm_free(world, *kept);
  *kept = NULL;
  *out = slot->payload;
  if (bytes <= SHM_PAYLOAD) return AD_OK;
  AD_TRY(ad_shm_alloc(world, bytes, kept));
  *out = *kept;
  return AD_OK;
}

static void fill_inline(const shm_call *c, size_t bytes, unsigned char *to) {
  if (ad_is_of_messages(c->call->operation))
    ad_shm_copy_stream(c, 0, bytes, (char *)to);
  else if (bytes)
    ad_copy_shared(to, c->call->in, bytes);
}

/* Publishes the slot. The other members poll the cache line with `offer` and `published`, so this line is written
 * last and without a pause: if a member read the line between two writes, this rank would have to fetch it back. */
static void publish(const shm_call *c, shm_slot *slot, const shm_offer *offer) {
  const memory_order relaxed = memory_order_relaxed;
  atomic_store_explicit(&slot->claimed, 0, relaxed);
  atomic_store_explicit(&slot->done, 0, relaxed);
  atomic_store_explicit(&slot->staged, 0, relaxed);
  atomic_store_explicit(&slot->reduced, 0, relaxed);
  atomic_store_explicit(&slot->copied, 0, relaxed);
  slot->offer = *offer;
  atomic_store_explicit(&slot->published, c->sequence + 1, memory_order_release);
}

// Records the call as this rank's last, for the watchdog.
static void record_last(shm_world *world, const shm_call *c) {
  const memory_order relaxed = memory_order_relaxed;
  shm_record *record = &world->records[world->rank];
  atomic_store_explicit(&record->last_channel, (uint64_t)((char *)c->channel->consumed - world->base), relaxed);
  atomic_store_explicit(&record->last_sequence, c->sequence, relaxed);
  atomic_store_explicit(&record->calls, atomic_load_explicit(&record->calls, relaxed) + 1, memory_order_release);
}

// Returns how many bytes pass through this member's staging buffer if the input is staged. In pairs that
// excludes the member's block for itself.
static size_t stream_bytes(const ad_call *call, size_t sent) {
  if (!ad_is_of_pairs(call->operation)) return sent;
  return sent - (ad_call_in_start(call, call->index + 1) - ad_call_in_start(call, call->index)) * call->element;
}

// Makes this member's input and table available to the other members, and writes their locations to *offer.
static ad_status make_offer(shm_world *world, shm_call *c, shm_slot *slot, size_t bytes, shm_offer *offer) {
  const ad_call *call = c->call;
  size_t table_bytes = ad_shm_table_bytes(call);
  void *table, *copy;
  AD_TRY(place_table(world, c, slot, table_bytes, &table));
  offer->out = place_output(world, call);
  offer->place = place_input(world, call, offer, bytes + table_bytes);
  AD_TRY(stage_at_once(world, c, bytes, offer, &copy));
  if (!copy && offer->place == SHM_INLINE) copy = slot->payload + table_bytes;
  if (needs_staging(call, offer)) AD_TRY(ad_shm_take_staging(world, &c->staging));
  offer->in = input_at(world, c, offer->place, copy);
  if (offer->place == SHM_INLINE) fill_inline(c, bytes, copy);
  if (!table_bytes) return AD_OK;
  offer->table = (uint64_t)((char *)table - world->base);
  ad_shm_fill_table(world, c, offer, table);
  return AD_OK;
}

ad_status ad_shm_publish(shm_world *world, shm_call *c) {
  const ad_call *call = c->call;
  AD_TRY(check_place(world, call));
  shm_slot *slot = ad_shm_slot(c, c->channel->index);
  size_t bytes = sent_bytes(call);
  shm_offer offer = {.entries = (uint32_t)call->message_count};
  ad_signature_take(call, &offer.signature);
  AD_TRY(make_offer(world, c, slot, bytes, &offer));
  slot->chunks = ad_shm_chunks(call);  // even if this input is inline, since other members' inputs may not be
  slot->stream = stream_bytes(call, bytes);
  slot->number = call->number;
  slot->axes = call->axes;
  ad_site_write(slot->site, call->site);
  publish(c, slot, &offer);
  record_last(world, c);
  ad_shm_wake(world, c->channel);
  return AD_OK;
}

void ad_shm_consume(shm_call *c) {
  shm_channel *channel = c->channel;
  _Atomic uint64_t *own = &channel->consumed[channel->index].calls;
  uint64_t calls = atomic_load_explicit(own, memory_order_relaxed);
  channel->finished |= 1ull << (c->sequence - calls);
  if (!(channel->finished & 1)) return;
  while (channel->finished & 1) {
    channel->finished >>= 1;
    calls++;
  }
  atomic_store_explicit(own, calls, memory_order_release);
}

/* ---- checking that all members published the same call ---- */

static int has_published(const shm_call *c, uint32_t member) {
  return atomic_load_explicit(&ad_shm_slot(c, member)->published, memory_order_acquire) == c->sequence + 1;
}

static void raise_mismatch(shm_world *world, const shm_call *c) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_reported_call reported[SHM_RANKS_MAX] = {0};
  for (uint32_t i = 0; i < c->channel->members; i++)
    if (has_published(c, i)) reported[i] = ad_shm_reported_call(ad_shm_slot(c, i), &c->channel->shape);
  ad_mismatch_words(&text, c->sequence, reported, c->channel->members, c->channel->index);
  ad_shm_raise(world->control, world->rank, AD_MISMATCH, AD_MISMATCH, words);
}

static int tables_match(shm_world *world, const shm_call *c) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  if (ad_shm_tables_match(world, c, &text)) return 1;
  ad_shm_raise(world->control, world->rank, AD_MISMATCH, AD_MISMATCH, words);
  return 0;
}

// Chooses the mode in which a matched call is carried out (shm_mode).
static void set_mode(shm_world *world, shm_call *c) {
  c->patience = world->patience;
  if (!c->any_not_inline)
    c->mode = SHM_ALONE;
  else
    c->mode = c->any_staged || c->any_pulled || c->any_elsewhere ? SHM_ROUNDS : SHM_CHUNKS;
  size_t touched = c->channel->members * (c->call->in_bytes + c->call->out_bytes);
  c->past = c->call->past_caches || ad_is_past_caches(touched);
  if (c->mode == SHM_CHUNKS) ad_shm_map_buffers(world, c);
}

int ad_shm_match(shm_world *world, shm_call *c) {
  const shm_slot *own = ad_shm_slot(c, c->channel->index);
  for (; c->seen < c->channel->members; c->seen++) {
    const shm_slot *slot = ad_shm_slot(c, c->seen);
    if (!has_published(c, c->seen)) return 0;
    if (!ad_signature_equal(&slot->offer.signature, &own->offer.signature)) {
      raise_mismatch(world, c);
      return 0;
    }
    c->any_staged |= slot->offer.place == SHM_STAGED;
    c->any_pulled |= slot->offer.place == SHM_PULLED;
    c->any_not_inline |= slot->offer.place != SHM_INLINE;
    c->any_elsewhere |= !slot->offer.out;
    c->any_table |= slot->offer.table != 0;
  }
  if (c->any_table && !tables_match(world, c)) return 0;
  set_mode(world, c);
  return 1;
}

// Returns 1 if this rank still waits for the member in this call: in mode SHM_AHEAD until the member has consumed the
// call; in all other modes until it has published the call and, in mode SHM_ROUNDS, has done its part.
static int is_missing(const shm_call *c, uint32_t member) {
  if (c->mode == SHM_AHEAD) return atomic_load(&c->channel->consumed[member].calls) <= c->sequence;
  if (!has_published(c, member)) return 1;
  return c->mode == SHM_ROUNDS && !atomic_load(&ad_shm_slot(c, member)->done);
}

int64_t ad_shm_missing(const shm_call *c, uint32_t from) {
  for (uint32_t i = from; i < c->channel->members; i++)
    if (is_missing(c, i)) return i;
  return -1;
}
