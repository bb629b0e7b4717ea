/* Channels: where the members of a group publish their calls to each other and find out whether they match. No values
 * are reduced or copied here, except small inputs into the slot. */
#include "comm/shm.h"

#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include "kernels/kernels.h"
#include "base/memory.h"
#include "mesh/group.h"

/* ---- finding the channel of a group ---- */

static uint64_t hash_shape(const ad_group_shape *shape) {
  const uint64_t odd = 0x9e3779b97f4a7c15ull;
  uint64_t hash = ((uint64_t)shape->base + 1 + (uint64_t)shape->head + ((uint64_t)shape->gap << 20)) * odd;
  for (int k = 0; k < shape->count; k++) {
    hash = (hash ^ hash >> 29 ^ (uint64_t)shape->size[k]) * odd;
    hash = (hash ^ hash >> 29 ^ (uint64_t)shape->stride[k]) * odd;
  }
  return hash ^ hash >> 32;
}

static uint64_t channel_bytes(uint64_t members) {
  return members * (sizeof(shm_consumed) + SHM_RING * sizeof(shm_slot));
}

// This rank is the first to call on the group and owns the entry: it makes the group's channel. The slots are zero, as
// all of a new file is.
static ad_status write_entry(shm_world *world, shm_entry *entry, const ad_call *call) {
  uint64_t bytes = channel_bytes(call->members);
  uint64_t used = atomic_fetch_add(&world->control->channels_used, bytes);
  if (used + bytes > world->control->channels_bytes) {
    atomic_store(&entry->state, 0);
    return ad_fail(AD_MEMORY, "too many different groups: the memory for their channels is full");
  }
  entry->shape = call->shape;
  entry->members = call->members;
  entry->channel = world->control->channels_start + used;
  atomic_store_explicit(&entry->state, 2, memory_order_release);
  return AD_OK;
}

// The entry of the group in the table that all ranks share, made if there is none.
static ad_status find_entry(shm_world *world, const ad_call *call, uint64_t hash, shm_entry **out) {
  for (uint64_t i = 0; i < SHM_CHANNELS; i++) {
    shm_entry *entry = &world->control->entries[(hash + i) % SHM_CHANNELS];
    uint32_t state = 0;
    if (atomic_compare_exchange_strong(&entry->state, &state, 1)) AD_TRY(write_entry(world, entry, call));
    while ((state = atomic_load_explicit(&entry->state, memory_order_acquire)) == 1) {
      if (ad_shm_failed(world)) return ad_shm_error(world->control);
      sched_yield();
    }
    if (state == 2 && ad_shape_same(&entry->shape, &call->shape)) {
      *out = entry;
      return AD_OK;
    }
  }
  return ad_fail(AD_MEMORY, "more than %d different groups in one world", SHM_CHANNELS);
}

static shm_channel **place_in_table(shm_world *world, const ad_group_shape *shape, uint64_t hash) {
  for (uint64_t i = hash;; i++) {
    shm_channel **place = &world->channels[i % world->channel_slots];
    if (!*place || ad_shape_same(&(*place)->shape, shape)) return place;
  }
}

static ad_status grow_table(shm_world *world) {
  shm_channel **old = world->channels;
  uint32_t old_slots = world->channel_slots, slots = old_slots ? 2 * old_slots : 32;
  if (2 * (world->channel_count + 1) <= old_slots) return AD_OK;
  AD_TRY(ad_new(slots, &world->channels));
  world->channel_slots = slots;
  for (uint32_t i = 0; i < old_slots; i++)
    if (old[i]) *place_in_table(world, &old[i]->shape, hash_shape(&old[i]->shape)) = old[i];
  ad_release(old);
  return AD_OK;
}

static ad_status add_channel(shm_world *world, const ad_call *call, uint64_t hash, shm_channel **out) {
  shm_channel *channel;
  shm_entry *entry = world->control->entries;  // until it is found
  AD_TRY(grow_table(world));
  AD_TRY(find_entry(world, call, hash, &entry));
  AD_TRY(ad_new(1, &channel));
  channel->shape = call->shape;
  channel->members = call->members;
  channel->index = call->index;
  channel->consumed = ad_shm_at(world, entry->channel);
  channel->slots = (shm_slot *)(channel->consumed + call->members);
  *place_in_table(world, &call->shape, hash) = channel;
  world->channel_count++;
  *out = channel;
  return AD_OK;
}

ad_status ad_shm_channel(shm_world *world, const ad_call *call, shm_channel **out) {
  shm_channel *channel = world->last_channel;
  if (channel && ad_shape_same(&channel->shape, &call->shape)) {
    *out = channel;
    return AD_OK;
  }
  uint64_t hash = hash_shape(&call->shape);
  channel = world->channel_slots ? *place_in_table(world, &call->shape, hash) : NULL;
  if (!channel) AD_TRY(add_channel(world, call, hash, &channel));
  *out = world->last_channel = channel;
  return AD_OK;
}

void ad_shm_channels_free(shm_world *world) {
  for (uint32_t i = 0; i < world->channel_slots; i++) ad_release(world->channels[i]);
  ad_release(world->channels);
}

/* ---- publishing ---- */

int ad_shm_ring_free(shm_channel *channel) {
  uint64_t needed = channel->next_sequence < SHM_RING ? 0 : channel->next_sequence - SHM_RING + 1;
  if (channel->consumed_by_all >= needed) return 1;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < channel->members; i++) {
    uint64_t calls = atomic_load_explicit(&channel->consumed[i].calls, memory_order_acquire);
    if (calls < least) least = calls;
  }
  channel->consumed_by_all = least;
  return least >= needed;
}

static size_t sent_bytes(const ad_call *call) {
  if (call->op != AD_EXCHANGE) return call->in_bytes;
  size_t bytes = 0;
  for (size_t i = 0; i < call->message_count; i++)
    if (call->messages[i].send) bytes += call->messages[i].count * call->element;
  return bytes;
}

static int messages_in_file(const shm_world *world, const ad_call *call, int sends) {
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    const void *buffer = sends ? message->send : message->receive;
    size_t bytes = message->count * call->element;
    if (buffer && bytes && !ad_shm_offset(world, buffer, bytes)) return 0;
  }
  return 1;
}

static int input_in_file(const shm_world *world, const ad_call *call) {
  if (call->op == AD_EXCHANGE) return messages_in_file(world, call, 1);
  return !call->in_bytes || ad_shm_offset(world, call->in, call->in_bytes) != 0;
}

// The offset of the output, 0 if it is not in the file. An output of no bytes counts as being there, since nothing has
// to be written elsewhere.
static uint64_t place_output(const shm_world *world, const ad_call *call) {
  if (call->op == AD_EXCHANGE) return messages_in_file(world, call, 0) ? world->control->regions_start : 0;
  return call->out_bytes ? ad_shm_offset(world, call->out, call->out_bytes) : world->control->regions_start;
}

// Into how many pieces the readers of an input cut it. A piece is what one member reads at once, with a system call.
static size_t pieces(const ad_call *call) {
  if (call->op == AD_BROADCAST) return 1;
  if (call->op == AD_ALL_GATHER) return ad_call_parts(call);
  if (call->op == AD_EXCHANGE) return call->message_count;
  return call->members * ad_call_parts(call);
}

// Whether reading an input of `bytes` from its process is faster than passing it through staging, as measured with 2 to
// 8 ranks on 2 cores. Where several ranks share a core, staging costs less: who stages and who fetches share a cache.
// An all_reduce is never pulled. It would have to pull twice, the second time into cache lines that a peer has just
// read: in place that is slower than staging up to 1 MiB, and at every size where a core has several ranks.
static int is_worth_pulling(const shm_world *world, const ad_call *call, size_t bytes) {
  size_t least = !world->crowded ? 1 : ad_op_reduces(call->op) ? 16 : 8;
  return call->op != AD_ALL_REDUCE && bytes / pieces(call) >= least * SHM_PULL_MIN;
}

// A call whose inputs are in the slots is complete as soon as all members have published it, but then every member
// reads all inputs. Measured on 2 to 8 ranks, that pays up to SHM_INLINE_IN_FILE bytes. Where a buffer lies outside the
// file it pays as long as the input fits into the slot, since it would have to be staged otherwise.
static shm_place place_input(const shm_world *world, const ad_call *call, const shm_offer *offer, size_t bytes) {
  int in_file = input_in_file(world, call);
  if (bytes <= (in_file && offer->out ? SHM_INLINE_IN_FILE : SHM_PAYLOAD)) return SHM_INLINE;
  if (in_file) return SHM_SHARED;
  return is_worth_pulling(world, call, bytes) && world->pulls ? SHM_PULLED : SHM_STAGED;
}

// An input that is to be reduced is pulled into the staging buffer first.
static int needs_staging(const ad_call *call, const shm_offer *offer) {
  return offer->place == SHM_STAGED || (offer->place == SHM_PULLED && ad_op_reduces(call->op));
}

static uint64_t input_at(const shm_world *world, const shm_call *c, const shm_slot *slot, shm_place place,
                         size_t table_bytes) {
  if (place == SHM_PULLED) return (uint64_t)(uintptr_t)c->call->in;
  const void *in = place == SHM_INLINE ? slot->payload + table_bytes : place == SHM_STAGED ? c->staging : c->call->in;
  return (uint64_t)((const char *)in - world->base);
}

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
  if (c->call->op == AD_EXCHANGE)
    ad_shm_copy_stream(c, 0, bytes, (char *)to);
  else if (bytes)
    memcpy(to, c->call->in, bytes);
}

/* Publishes the slot. The cache line with `offer` and `published`, which the other members watch, is written last and
 * in one go: a member that reads it between two writes takes the line away, and this rank has to fetch it back. */
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

static void record_last(shm_world *world, const shm_call *c) {
  const memory_order relaxed = memory_order_relaxed;
  shm_record *record = &world->records[world->rank];
  atomic_store_explicit(&record->last_channel, (uint64_t)((char *)c->channel->consumed - world->base), relaxed);
  atomic_store_explicit(&record->last_sequence, c->sequence, relaxed);
  atomic_store_explicit(&record->calls, atomic_load_explicit(&record->calls, relaxed) + 1, memory_order_release);
}

ad_status ad_shm_publish(shm_world *world, shm_call *c) {
  const ad_call *call = c->call;
  shm_slot *slot = ad_shm_slot(c, c->channel->index);
  size_t table_bytes = ad_shm_table_bytes(call), bytes = sent_bytes(call);
  void *table;
  AD_TRY(place_table(world, c, slot, table_bytes, &table));
  shm_offer offer = {.signature = ad_signature_of(call), .entries = (uint32_t)call->message_count};
  offer.out = place_output(world, call);
  offer.place = place_input(world, call, &offer, bytes + table_bytes);
  if (needs_staging(call, &offer)) AD_TRY(ad_shm_take_staging(world, &c->staging));
  slot->chunks = ad_shm_chunks(call);  // of an inline input too: those of other members may lie elsewhere
  if (table_bytes) offer.table = (uint64_t)((char *)table - world->base);
  offer.in = input_at(world, c, slot, offer.place, table_bytes);
  if (offer.place == SHM_INLINE) fill_inline(c, bytes, slot->payload + table_bytes);
  slot->stream =
      call->op == AD_ALL_TO_ALL
          ? bytes - (ad_call_in_start(call, call->index + 1) - ad_call_in_start(call, call->index)) * call->element
          : bytes;
  if (table_bytes) ad_shm_fill_table(world, c, &offer, table);
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

/* ---- matching ---- */

void ad_shm_call_words(ad_text *text, const shm_slot *slot, const ad_group_shape *shape) {
  ad_signature_print(text, &slot->offer.signature);
  ad_text_add(text, " over ");
  ad_group_words(text, slot->axes, shape);
  ad_text_add(text, " at %.*s", AD_SITE_MAX, slot->site);
}

static int has_published(const shm_call *c, uint32_t member) {
  return atomic_load_explicit(&ad_shm_slot(c, member)->published, memory_order_acquire) == c->sequence + 1;
}

// Adds "; rank 1 calls " or "; ranks 1,2 call ": all ranks that have published the same call as `member`. Adds nothing
// and returns 0 if an earlier member has the same call, since that one's ranks are in the text already.
static int add_ranks_like(ad_text *text, const shm_call *c, uint32_t member) {
  const ad_signature *signature = &ad_shm_slot(c, member)->offer.signature;
  for (uint32_t i = 0; i < member; i++)
    if (has_published(c, i) && ad_signature_equal(&ad_shm_slot(c, i)->offer.signature, signature)) return 0;
  char list[256];
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t i = member; i < c->channel->members; i++) {
    if (!has_published(c, i) || !ad_signature_equal(&ad_shm_slot(c, i)->offer.signature, signature)) continue;
    ad_text_add(&ranks, "%s%" PRId64, count++ ? "," : "", ad_shape_rank(&c->channel->shape, i));
  }
  ad_text_add(text, count == 1 ? "; rank %s calls " : "; ranks %s call ", list);
  return 1;
}

static void raise_mismatch(shm_world *world, const shm_call *c) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "collectives do not match: call %" PRIu64 " of the group ", c->sequence + 1);
  ad_group_words(&text, c->call->axes, &c->channel->shape);
  for (uint32_t i = 0; i < c->channel->members; i++) {
    if (!has_published(c, i) || !add_ranks_like(&text, c, i)) continue;
    const shm_slot *slot = ad_shm_slot(c, i);
    ad_shm_call_words(&text, slot, &c->channel->shape);
    ad_text_add(&text, " (its call #%" PRIu64 ")", slot->number);
  }
  ad_text_add(&text, "; all ranks of a group must make the same calls in the same order");
  ad_shm_raise(world->control, world->rank, AD_MISMATCH, AD_MISMATCH, words);
}

static int tables_match(shm_world *world, const shm_call *c) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "collectives do not match: call %" PRIu64 " of the group: ", c->sequence + 1);
  if (ad_shm_tables_match(world, c, &text)) return 1;
  ad_shm_raise(world->control, world->rank, AD_MISMATCH, AD_MISMATCH, words);
  return 0;
}

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

static int is_lacking(const shm_call *c, uint32_t member) {
  if (c->mode == SHM_AHEAD) return atomic_load(&c->channel->consumed[member].calls) <= c->sequence;
  if (!has_published(c, member)) return 1;
  return c->mode == SHM_ROUNDS && !atomic_load(&ad_shm_slot(c, member)->done);
}

int64_t ad_shm_lacking(const shm_call *c, uint32_t from) {
  for (uint32_t i = from; i < c->channel->members; i++)
    if (is_lacking(c, i)) return i;
  return -1;
}
