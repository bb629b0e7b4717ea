/* For operations that only copy: lists the segments that each destination receives, and compares the tables in which
 * members publish their counts and messages. */
#include "comm/shm/copy.h"

#include <string.h>
#include "comm/shm/memory.h"
#include "comm/words.h"
#include "mesh/group.h"

/* ---- tables in which members publish their counts and messages ---- */

size_t ad_shm_table_bytes(const ad_call *call) {
  if (ad_is_of_messages(call->operation)) return call->message_count * sizeof(shm_message);
  if (ad_is_of_pairs(call->operation) && call->in_starts) return 2 * (call->members + 1) * sizeof(uint64_t);
  return 0;
}

// Writes the table of an exchange: for each message its peer, its size, and where its buffer is.
static void fill_messages(const shm_world *world, const ad_call *call, const shm_offer *offer, shm_message *table) {
  uint64_t stream = 0;
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    uint64_t bytes = message->count * call->element;
    shm_message *entry = &table[i];
    *entry = (shm_message){(uint32_t)message->peer, message->send != NULL, (uint8_t)call->dtype, bytes, 0};
    entry->at = ad_shm_offset(world, message->send ? message->send : message->receive, bytes);
    if (!message->send) continue;
    if (offer->place == SHM_PULLED) entry->at = (uint64_t)(uintptr_t)message->send;
    if (offer->place == SHM_STAGED) entry->at = stream;
    if (offer->place == SHM_INLINE) entry->at = offer->in + stream;
    stream += bytes;
  }
}

void ad_shm_fill_table(const shm_world *world, const shm_call *c, const shm_offer *offer, void *table) {
  const ad_call *call = c->call;
  if (ad_is_of_messages(call->operation)) {
    fill_messages(world, call, offer, table);
    return;
  }
  size_t n = (call->members + 1) * sizeof(uint64_t);
  memcpy(table, call->in_starts, n);
  memcpy((char *)table + n, call->out_starts, n);
}

static const uint64_t *in_starts(const shm_world *world, const shm_call *c, uint32_t member) {
  uint64_t table = ad_shm_slot(c, member)->offer.table;
  return table ? ad_shm_at(world, table) : NULL;
}

static const uint64_t *out_starts(const shm_world *world, const shm_call *c, uint32_t member) {
  return in_starts(world, c, member) + c->channel->members + 1;
}

static const shm_message *messages_of(const shm_world *world, const shm_call *c, uint32_t member) {
  return ad_shm_at(world, ad_shm_slot(c, member)->offer.table);
}

// Returns the index, in a member's table, of the first send (or, if `sends` is 0, receive) whose peer is `peer` or a
// later member. A table has sends first; sends and receives are each sorted by peer.
static uint32_t first_entry(const shm_message *table, uint32_t entries, int sends, uint32_t peer) {
  uint32_t first = 0, end = entries;
  while (first < end) {
    uint32_t middle = first + (end - first) / 2;
    int is_before = table[middle].sends == sends ? table[middle].peer < peer : table[middle].sends > sends;
    if (is_before)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

// Returns the index, in the table of `member`, of the n-th message that `member` sends to (or, if `sends` is 0,
// receives from) `peer`; -1 if there are fewer messages.
static int64_t find_message(const shm_world *world, const shm_call *c, uint32_t member, uint32_t peer, int sends,
                            uint32_t n) {
  const shm_message *table = messages_of(world, c, member);
  uint32_t entries = ad_shm_slot(c, member)->offer.entries, at = first_entry(table, entries, sends, peer) + n;
  return at < entries && table[at].sends == sends && table[at].peer == peer ? (int64_t)at : -1;
}

/* ---- whether two members' tables match ---- */

static ad_reported_block reported_block(const shm_call *c, uint32_t member, uint64_t elements) {
  const ad_group_shape *shape = &c->channel->shape;
  return (ad_reported_block){ad_shape_rank(shape, member), elements,
                             ad_shm_reported_call(ad_shm_slot(c, member), shape)};
}

// Returns 1 if in an all_to_all each member sends to each other member as many elements as that member expects. If not,
// appends the difference to `words`.
static int starts_match(const shm_world *world, const shm_call *c, ad_text *words) {
  for (uint32_t i = 0; i < c->channel->members; i++) {
    for (uint32_t j = 0; j < c->channel->members; j++) {
      const uint64_t *sends = in_starts(world, c, i), *receives = out_starts(world, c, j);
      uint64_t sent = sends[j + 1] - sends[j], received = receives[i + 1] - receives[i];
      if (sent == received) continue;
      ad_reported_block reported_sent = reported_block(c, i, sent), reported_received = reported_block(c, j, received);
      ad_block_words(words, c->sequence, &reported_sent, &reported_received);
      return 0;
    }
  }
  return 1;
}

// Describes the message with index n in a member's table, for error messages. A negative n means that the member has no
// such message.
static ad_reported_message reported_message(const shm_world *world, const shm_call *c, uint32_t member, int64_t n) {
  ad_reported_message reported = {.rank = ad_shape_rank(&c->channel->shape, member),
                                  .site = ad_shm_slot(c, member)->site};
  if (n < 0) return reported;
  const shm_message *message = &messages_of(world, c, member)[n];
  reported.exists = 1;
  reported.dtype = (ad_dtype)message->dtype;
  reported.bytes = message->bytes;
  return reported;
}

// Compares the two sides of the n-th message from member i to member j. Returns 1 if they match, 0 if not, -1 if
// neither side has an n-th message.
static int pair_matches(const shm_world *world, const shm_call *c, uint32_t i, uint32_t j, uint32_t n, ad_text *words) {
  int64_t sent = find_message(world, c, i, j, 1, n), received = find_message(world, c, j, i, 0, n);
  if (sent < 0 && received < 0) return -1;
  if (sent >= 0 && received >= 0) {
    const shm_message *a = &messages_of(world, c, i)[sent], *b = &messages_of(world, c, j)[received];
    if (a->bytes == b->bytes && a->dtype == b->dtype) return 1;
  }
  ad_reported_message reported_sent = reported_message(world, c, i, sent),
                      reported_received = reported_message(world, c, j, received);
  ad_message_words(words, c->sequence, c->call->axes, &c->channel->shape, n, &reported_sent, &reported_received);
  return 0;
}

static int messages_match(const shm_world *world, const shm_call *c, ad_text *words) {
  for (uint32_t i = 0; i < c->channel->members; i++)
    for (uint32_t j = 0; j < c->channel->members; j++) {
      int found = 1;
      for (uint32_t n = 0; found > 0; n++) found = pair_matches(world, c, i, j, n, words);
      if (!found) return 0;
    }
  return 1;
}

int ad_shm_tables_match(const shm_world *world, const shm_call *c, ad_text *words) {
  return ad_is_of_messages(c->call->operation) ? messages_match(world, c, words) : starts_match(world, c, words);
}

/* ---- the segments that one member reads ---- */

// Returns the address that `at`, a number from a member's offer or table, stands for; NULL if the bytes pass through
// staging. If the bytes are pulled, it is an address in the member's process, which must not be dereferenced here.
static const char *offered_address(const shm_world *world, const shm_slot *slot, uint64_t at) {
  if (slot->offer.place == SHM_STAGED) return NULL;
  return slot->offer.place == SHM_PULLED ? (const char *)(uintptr_t)at : ad_shm_at(world, at);
}

// Returns the address at which this rank finds a member's input. This rank's own input is the call's buffer, which need
// not be in the shared memory file.
static const char *input_of(const shm_world *world, const shm_call *c, uint32_t member) {
  const shm_slot *slot = ad_shm_slot(c, member);
  if (member == c->channel->index) return c->call->in;
  return offered_address(world, slot, slot->offer.in);
}

static char *output_of(const shm_world *world, const shm_call *c, uint32_t member) {
  return member == c->channel->index ? c->call->out : ad_shm_at(world, ad_shm_slot(c, member)->offer.out);
}

static const char *plus(const char *start, uint64_t bytes) { return start ? start + bytes : NULL; }

// Returns the segment of an all_to_all from `source` to `destination`. The stream of a sender begins with its block for
// the next member, continues with the blocks for the members after it, then for those from the first member on, and
// leaves out the sender's own block. So members do not all send to the same member first.
static shm_segment pair_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t source) {
  size_t element = c->call->element, equal = c->call->count;
  const uint64_t *sends = in_starts(world, c, source);
  const uint64_t *receives = sends ? out_starts(world, c, destination) : NULL;
  uint64_t start = sends ? sends[destination] : destination * equal;
  uint64_t after_own = sends ? sends[source + 1] : (source + 1) * equal;
  uint64_t end = sends ? sends[c->channel->members] : c->channel->members * equal;
  uint64_t to = receives ? receives[source] : source * equal;
  shm_segment segment = {.source = source};
  segment.bytes = (sends ? sends[destination + 1] - start : equal) * element;
  segment.from = plus(input_of(world, c, source), start * element);
  segment.to = output_of(world, c, destination) + to * element;
  segment.stream = (start >= after_own ? start - after_own : start + (end - after_own)) * element;
  return segment;
}

// Returns the segment that `destination` gets from `source` of segment number `part` of the full value. The source's
// stream is its whole input.
static shm_segment piece_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t source,
                                 size_t part) {
  ad_comm_piece piece = ad_call_piece(c->call, source, destination, part);
  size_t element = c->call->element;
  return (shm_segment){.source = source,
                       .from = plus(input_of(world, c, source), piece.in * element),
                       .to = output_of(world, c, destination) + piece.out * element,
                       .bytes = piece.count * element,
                       .stream = piece.in * element};
}

// Returns the n-th segment (message) that `destination` receives in an exchange.
static shm_segment exchange_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n) {
  const shm_message *table = messages_of(world, c, destination);
  uint32_t entries = ad_shm_slot(c, destination)->offer.entries, at = first_entry(table, entries, 0, 0) + n;
  uint32_t source = table[at].peer, own = c->channel->index, earlier = at - first_entry(table, entries, 0, source);
  int64_t sent = find_message(world, c, source, destination, 1, earlier);
  const shm_message *message = &messages_of(world, c, source)[sent];
  shm_segment segment = {.source = source, .bytes = message->bytes, .stream = message->at};
  segment.from =
      source == own ? c->call->messages[sent].send : offered_address(world, ad_shm_slot(c, source), message->at);
  segment.to = destination == own ? c->call->messages[at].receive : ad_shm_at(world, table[at].at);
  return segment;
}

uint32_t ad_shm_pieces(const ad_call *call, uint32_t destination) {
  const ad_comm_operation *operation = call->operation;
  if (operation->in == AD_BUFFER_NONE || (operation->out_on_root && destination != call->root)) return 0;
  return (operation->in_on_root ? 1 : call->members) * (uint32_t)ad_call_parts(call);
}

// Returns the source of the n-th piece that a member copies. All members copy from the same source first: one member
// fetches the bytes into the shared cache, and the others find them there. Measured: 16 MiB take three quarters of the
// time that they take if each member starts with another source.
static uint32_t source_of(const ad_call *call, uint32_t n) {
  return call->operation->in_on_root ? call->root : n / (uint32_t)ad_call_parts(call);
}

ad_comm_piece ad_shm_piece(const ad_call *call, uint32_t destination, uint32_t n) {
  return ad_call_piece(call, source_of(call, n), destination, n % ad_call_parts(call));
}

uint32_t ad_shm_segments(const shm_world *world, const shm_call *c, uint32_t destination) {
  if (!ad_is_of_messages(c->call->operation)) return ad_shm_pieces(c->call, destination);
  uint32_t entries = ad_shm_slot(c, destination)->offer.entries;
  return entries - first_entry(messages_of(world, c, destination), entries, 0, 0);
}

static shm_segment find_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n) {
  if (ad_is_of_messages(c->call->operation)) return exchange_segment(world, c, destination, n);
  uint32_t source = source_of(c->call, n);
  if (ad_is_of_pairs(c->call->operation)) return pair_segment(world, c, destination, source);
  return piece_segment(world, c, destination, source, n % ad_call_parts(c->call));
}

shm_segment ad_shm_segment(const shm_world *world, const shm_call *c, uint32_t destination, uint32_t n) {
  shm_segment segment = find_segment(world, c, destination, n);
  segment.pulled = segment.source != c->channel->index && ad_shm_slot(c, segment.source)->offer.place == SHM_PULLED;
  return segment;
}

/* ---- copying this member's blocks through the staging buffer ---- */

// Copies to `to` those of the bytes [start, start + bytes) of a stream that are in the buffer `from`. The first byte of
// `from` is byte `from_start` of the stream.
static void copy_part(const char *from, uint64_t from_start, uint64_t from_bytes, uint64_t start, size_t bytes,
                      char *to) {
  uint64_t first = start > from_start ? start : from_start;
  uint64_t end = start + bytes < from_start + from_bytes ? start + bytes : from_start + from_bytes;
  if (first < end) ad_copy_shared(to + (first - start), from + (first - from_start), end - first);
}

// Copies bytes [start, start + bytes) of this member's stream in an exchange. The stream consists of all messages that
// this member sends, one after another.
static void copy_messages(const ad_call *call, uint64_t start, size_t bytes, char *to) {
  uint64_t at = 0;
  for (size_t i = 0; i < call->message_count; i++) {
    if (!call->messages[i].send) continue;
    uint64_t length = call->messages[i].count * call->element;
    copy_part(call->messages[i].send, at, length, start, bytes, to);
    at += length;
  }
}

void ad_shm_copy_stream(const shm_call *c, uint64_t start, size_t bytes, char *to) {
  const ad_call *call = c->call;
  if (ad_is_of_messages(call->operation)) {
    copy_messages(call, start, bytes, to);
  } else if (ad_is_of_pairs(call->operation)) {
    uint64_t own = ad_call_in_start(call, call->index) * call->element;
    uint64_t after_own = ad_call_in_start(call, call->index + 1) * call->element;
    const char *in = call->in;
    copy_part(in + after_own, 0, call->in_bytes - after_own, start, bytes, to);
    copy_part(in, call->in_bytes - after_own, own, start, bytes, to);
  } else {
    copy_part(call->in, 0, call->in_bytes, start, bytes, to);
  }
}
