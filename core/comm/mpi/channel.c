/* Matches the calls of groups that span nodes: this rank sends a description of each of its calls to every other
 * member by mail, and compares the descriptions from other members with its own call. */
#include "comm/mpi/channel.h"

#include <string.h>
#include "base/memory.h"
#include "comm/mpi/spans.h"
#include "comm/shm/memory.h"
#include "mesh/group.h"

/* ---- channels: one for each group that spans nodes ---- */

// Prepares the channel of a group that spans nodes: its routes, and an array for calls that members announce early.
static ad_status prepare_spanning(mpi_world *world, mpi_channel *channel) {
  uint32_t node_of[SHM_RANKS_MAX];
  for (uint32_t i = 0; i < channel->members; i++) node_of[i] = world->node_of[ad_shape_rank(&channel->shape, i)];
  AD_TRY(ad_mpi_routes_make(channel->members, node_of, &channel->routes));
  return ad_new((size_t)MPI_CALLS * channel->members, &channel->early);
}

static void free_channel(mpi_channel *channel) {
  for (size_t i = 0; channel->early && i < (size_t)MPI_CALLS * channel->members; i++) ad_release(channel->early[i]);
  ad_release(channel->early);
  ad_mpi_routes_free(&channel->routes);
  ad_release(channel->ranks);
  ad_release(channel);
}

static ad_status keep_ranks(mpi_channel *channel) {
  if (!channel->shape.list) return AD_OK;
  AD_TRY(ad_new(channel->members, &channel->ranks));
  memcpy(channel->ranks, channel->shape.ranks, channel->members * sizeof *channel->ranks);
  channel->shape.ranks = channel->ranks;
  return AD_OK;
}

// Makes the channel of a group, and finds out whether all members are on this node.
static ad_status add_channel(mpi_world *world, const ad_group_shape *shape, mpi_channel **out) {
  mpi_channel *channel;
  AD_TRY(ad_new(1, &channel));
  channel->shape = *shape;
  channel->members = (uint32_t)ad_shape_members(shape);
  channel->is_local = 1;
  for (uint32_t i = 0; i < channel->members; i++) {
    if (ad_shape_rank(shape, i) == world->rank) channel->index = i;
    channel->is_local &= ad_mpi_on_node(world, channel, i);
  }
  ad_status status = keep_ranks(channel);
  if (!status && !channel->is_local) status = prepare_spanning(world, channel);
  if (status) {
    free_channel(channel);
    return status;
  }
  channel->next = world->channels;
  *out = world->channels = channel;
  return AD_OK;
}

static mpi_channel *find_channel(const mpi_world *world, const ad_group_shape *shape) {
  mpi_channel *channel = world->last_channel;
  if (channel && ad_shape_same(&channel->shape, shape)) return channel;
  for (channel = world->channels; channel && !ad_shape_same(&channel->shape, shape);) channel = channel->next;
  return channel;
}

// Handles the calls on a list of ranks that other members announced before this rank made its first call on the list.
static void take_unknown(mpi_world *world, uint64_t list) {
  size_t left = 0, count = world->unknown_count;
  world->unknown_count = 0;
  for (size_t i = 0; i < count; i++) {
    mail_call *reported = world->unknown[i];
    if (reported->shape.list == list)
      ad_mpi_reported(world, reported);
    else
      world->unknown[left++] = reported;
  }
  world->unknown_count = left;
}

ad_status ad_mpi_channel(mpi_world *world, const ad_group_shape *shape, mpi_channel **out) {
  mpi_channel *channel = find_channel(world, shape);
  int is_new = !channel;
  if (is_new) AD_TRY(add_channel(world, shape, &channel));
  if (is_new && shape->list) take_unknown(world, shape->list);
  *out = world->last_channel = channel;
  return AD_OK;
}

void ad_mpi_forget_list(mpi_world *world, const ad_group_shape *shape) {
  mpi_channel **link = &world->channels;
  while (*link && !ad_shape_same(&(*link)->shape, shape)) link = &(*link)->next;
  mpi_channel *channel = *link;
  if (!channel) return;
  *link = channel->next;
  if (world->last_channel == channel) world->last_channel = NULL;
  free_channel(channel);
}

void ad_mpi_channels_free(mpi_world *world) {
  while (world->channels) {
    mpi_channel *channel = world->channels;
    world->channels = channel->next;
    free_channel(channel);
  }
  for (size_t i = 0; i < world->unknown_count; i++) ad_release(world->unknown[i]);
  ad_release(world->unknown);
}

// Returns the element for a call that `member` announces before this rank makes its own call with this number.
static mail_call **early_place(const mpi_channel *channel, uint64_t sequence, uint32_t member) {
  return &channel->early[sequence % MPI_CALLS * channel->members + member];
}

int ad_mpi_has_made(mpi_world *world, const ad_group_shape *shape, uint64_t sequence) {
  mpi_channel *channel = find_channel(world, shape);
  if (!channel && shape->list) return 0;
  if (!channel && ad_mpi_channel(world, shape, &channel)) return 1;
  if (!channel->is_local) return channel->next_sequence > sequence;
  ad_call call = {.members = channel->members, .index = channel->index, .shape = channel->shape};
  shm_channel *local;
  return ad_shm_channel(world->shm, &call, &local) || local->next_sequence > sequence;
}

/* ---- checking that all members post the same call ---- */

static void raise_mismatch(mpi_world *world, const mpi_call *c) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_reported_call reported[SHM_RANKS_MAX] = {0};
  for (uint32_t i = 0; i < c->channel->members; i++)
    if (c->members[i].reported) reported[i] = ad_mpi_reported_call(c->members[i].reported);
  ad_mismatch_words(&text, c->sequence, reported, c->channel->members, c->channel->index);
  ad_mpi_raise(world, AD_MISMATCH, words);
}

// Sets the world's error: sender and receiver of a block of an all_to_all disagree on its size. Either of them may find
// the mismatch first, so both write the same message.
static void raise_elements(mpi_world *world, const mpi_call *c, const mail_call *sender, uint64_t sent,
                           const mail_call *receiver, uint64_t received) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_reported_block reported_sent = {sender->head.from, sent, ad_mpi_reported_call(sender)};
  ad_reported_block reported_received = {receiver->head.from, received, ad_mpi_reported_call(receiver)};
  ad_block_words(&text, c->sequence, &reported_sent, &reported_received);
  ad_mpi_raise(world, AD_MISMATCH, words);
}

// Compares the sizes of the blocks that this rank and member k send each other in an all_to_all.
static void match_elements(mpi_world *world, const mpi_call *c, uint32_t k, const mail_call *reported) {
  const ad_call *call = c->call;
  const mail_call *own = c->members[call->index].reported;
  uint64_t sent = ad_call_in_start(call, k + 1) - ad_call_in_start(call, k);
  uint64_t received = ad_call_out_start(call, k + 1) - ad_call_out_start(call, k);
  if (reported->elements != received)
    raise_elements(world, c, reported, reported->elements, own, received);
  else if (reported->expects != sent)
    raise_elements(world, c, own, sent, reported, reported->expects);
}

/* ---- the messages of an exchange ---- */

// Finds this rank's n-th message to (if `sends` is 1) or from member k. Returns 0 if there are fewer messages.
static int find_own(const ad_call *call, uint32_t k, int sends, uint32_t n, mail_message *out) {
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    if (message->peer != k || !message->send != !sends || n-- != 0) continue;
    *out = (mail_message){message->count * call->element, (uint32_t)call->dtype, (uint32_t)sends};
    return 1;
  }
  return 0;
}

// Finds the n-th message in the table that a member announced: of those it sends if `sends` is 1, else of those it
// receives. Returns 0 if there are fewer messages.
static int find_reported(const mail_call *reported, int sends, uint32_t n, mail_message *out) {
  const mail_message *table = (const mail_message *)(reported + 1);
  for (uint32_t i = 0; i < reported->entries; i++) {
    if ((int)table[i].sends != sends || n-- != 0) continue;
    *out = table[i];
    return 1;
  }
  return 0;
}

static ad_reported_message reported_message(const mail_call *reported, int exists, const mail_message *message) {
  return (ad_reported_message){reported->head.from, exists, (ad_dtype)message->dtype, message->bytes, reported->site};
}

// Compares both sides of the n-th message from member k (if `to_this` is 1) or to member k. Returns 1 if the two sides
// match, 0 if not, -1 if neither side has an n-th message.
static int match_message(mpi_world *world, const mpi_call *c, uint32_t k, const mail_call *reported, int to_this,
                         uint32_t n) {
  mail_message own_message = {0}, its_message = {0};
  int own_has = find_own(c->call, k, !to_this, n, &own_message);
  int reported_has = find_reported(reported, to_this, n, &its_message);
  if (!own_has && !reported_has) return -1;
  if (own_has && reported_has && own_message.bytes == its_message.bytes && own_message.dtype == its_message.dtype)
    return 1;
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_reported_message own = reported_message(c->members[c->call->index].reported, own_has, &own_message);
  ad_reported_message others = reported_message(reported, reported_has, &its_message);
  ad_message_words(&text, c->sequence, c->call->axes, &c->channel->shape, n, to_this ? &others : &own,
                   to_this ? &own : &others);
  ad_mpi_raise(world, AD_MISMATCH, words);
  return 0;
}

static void match_messages(mpi_world *world, const mpi_call *c, uint32_t k, const mail_call *reported) {
  int found = 1;
  for (int to_this = 0; to_this < 2 && found; to_this++) {
    found = 1;
    for (uint32_t n = 0; found > 0; n++) found = match_message(world, c, k, reported, to_this, n);
  }
}

// Compares the call of member k with this rank's own call. A mismatch becomes the world's error.
static void match(mpi_world *world, mpi_call *c, uint32_t k, const mail_call *reported) {
  const ad_call *call = c->call;
  if (!ad_signature_equal(&reported->signature, &c->members[c->channel->index].reported->signature)) {
    c->mismatched = 1;
    raise_mismatch(world, c);
  } else if (ad_is_of_messages(call->operation)) {
    match_messages(world, c, k, reported);
  } else if (ad_is_of_pairs(call->operation)) {
    match_elements(world, c, k, reported);
  }
}

/* ---- announcing this rank's calls to the other members ---- */

// Fills in those fields of a call's mail that are the same for every member.
static void write_call(mpi_world *world, const mpi_call *c, mail_call *out) {
  const ad_call *call = c->call;
  out->head = (mail){MAIL_CALL, world->rank};
  out->shape = c->channel->shape;
  out->axes = call->axes;
  out->sequence = c->sequence;
  out->number = call->number;
  ad_signature_take(c->asked, &out->signature);
  out->tag = c->tag;
  ad_site_write(out->site, call->site);
}

// Announces an exchange to member k: mails a table of the messages between this rank and k and, if they are few, the
// values of the messages to k, one after another.
static void report_messages(mpi_world *world, const mpi_call *c, uint32_t k, mail_call *reported) {
  const ad_call *call = c->call;
  mail_message table[AD_CALL_INLINE_WORDS], *entries = table;
  char values[MAIL_INLINE];
  size_t count = 0, total = ad_mpi_sent_bytes(call, k);
  for (size_t i = 0; i < call->message_count; i++) count += call->messages[i].peer == k;
  if (count > AD_CALL_INLINE_WORDS && ad_new(count, &entries)) {
    ad_mpi_raise_memory(world, "the table of an exchange");
    return;
  }
  reported->entries = 0;
  reported->values = 0;
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    if (message->peer != k) continue;
    uint64_t bytes = message->count * call->element;
    entries[reported->entries++] = (mail_message){bytes, (uint32_t)call->dtype, message->send != NULL};
    if (!message->send || !bytes || total > MAIL_INLINE) continue;
    memcpy(values + reported->values, message->send, bytes);
    reported->values += bytes;
  }
  ad_mpi_send_mail(world, (uint32_t)ad_shape_rank(&reported->shape, k), reported, sizeof *reported, entries,
                   count * sizeof *entries, values, reported->values);
  if (entries != table) ad_release(entries);
}

// Announces the call to member k, together with the values for k if they are few.
static void report_member(mpi_world *world, const mpi_call *c, uint32_t k, mail_call *reported) {
  const ad_call *call = c->call;
  mpi_span values = {0};
  if (ad_is_of_messages(call->operation)) {
    report_messages(world, c, k, reported);
    return;
  }
  if (ad_mpi_is_small(call))
    values = ad_mpi_addends_for(call, k);
  else if (!ad_mpi_has_parts(call))
    values = ad_mpi_result_for(call, k);
  if (values.bytes > MAIL_INLINE) values.bytes = 0;
  mpi_span output = ad_gives_all_the_same(call->operation) ? ad_mpi_span(call->out, 1, 0, call->out_bytes)
                                                           : ad_mpi_result_from(call, k);
  reported->in = ad_mpi_has_parts(call) ? ad_shm_offset(world->shm, call->in, call->in_bytes) : 0;
  reported->out = ad_shm_offset(world->shm, output.at, output.bytes);
  if (ad_is_of_pairs(call->operation)) {
    reported->elements = ad_call_in_start(call, k + 1) - ad_call_in_start(call, k);
    reported->expects = ad_call_out_start(call, k + 1) - ad_call_out_start(call, k);
  }
  reported->values = values.bytes;
  ad_mpi_send_mail(world, (uint32_t)ad_shape_rank(&reported->shape, k), reported, sizeof *reported, NULL, 0, values.at,
                   values.bytes);
}

// Records the call that member k announced, and compares it with this rank's call.
static void take_reported(mpi_world *world, mpi_call *c, uint32_t k, mail_call *reported) {
  c->members[k].reported = reported;
  c->arrived++;
  match(world, c, k, reported);
}

ad_status ad_mpi_report(mpi_world *world, mpi_call *c) {
  mpi_channel *channel = c->channel;
  mail_call *own;
  AD_TRY(ad_new(1, &own));
  c->sequence = channel->next_sequence++;
  c->tag = (uint32_t)(world->calls_made++ % world->tags) * 2;
  write_call(world, c, own);
  for (uint32_t i = 1; i < channel->members; i++) {
    mail_call reported = *own;
    report_member(world, c, (channel->index + i) % channel->members, &reported);
  }
  c->members[channel->index].reported = own;
  c->arrived = 1;
  for (uint32_t k = 0; k < channel->members; k++) {
    mail_call **early = early_place(channel, c->sequence, k), *reported = *early;
    *early = NULL;
    if (reported) take_reported(world, c, k, reported);
  }
  return AD_OK;
}

/* ---- receiving the calls that other members announce ---- */

mpi_call *ad_mpi_find_call(mpi_world *world, uint32_t tag) {
  mpi_call *c = world->first;
  while (c && c->tag != tag) c = c->next;
  return c;
}

static mpi_call *find_by_sequence(mpi_world *world, const mpi_channel *channel, uint64_t sequence) {
  mpi_call *c = world->first;
  while (c && (c->channel != channel || c->sequence != sequence)) c = c->next;
  return c;
}

static uint32_t member_of(const mpi_channel *channel, uint32_t rank) {
  uint32_t k = 0;
  while (k + 1 < channel->members && ad_shape_rank(&channel->shape, k) != rank) k++;
  return k;
}

// Keeps a call that another member announced on a list on which this rank has made no call yet.
static ad_status keep_unknown(mpi_world *world, mail_call *reported) {
  AD_TRY(ad_grow(&world->unknown, world->unknown_count, world->unknown_count + 1));
  world->unknown[world->unknown_count++] = reported;
  return AD_OK;
}

// Finds or makes the channel of a call that a member announced. *out is NULL if the call has to wait for this rank's
// first call on its list.
static ad_status channel_of_reported(mpi_world *world, mail_call *reported, mpi_channel **out) {
  mpi_channel *last = world->last_channel;
  *out = find_channel(world, &reported->shape);
  if (!*out && reported->shape.list) return keep_unknown(world, reported);
  if (!*out) AD_TRY(ad_mpi_channel(world, &reported->shape, out));
  reported->shape.ranks = (*out)->shape.ranks;
  world->last_channel = last;
  return AD_OK;
}

void ad_mpi_reported(mpi_world *world, mail_call *reported) {
  mpi_channel *channel;
  if (channel_of_reported(world, reported, &channel)) {
    ad_release(reported);
    ad_mpi_raise_memory(world, "a group that another node calls");
    return;
  }
  if (!channel) return;
  uint32_t k = member_of(channel, reported->head.from);
  if (reported->sequence >= channel->next_sequence) {
    *early_place(channel, reported->sequence, k) = reported;
    return;
  }
  mpi_call *c = find_by_sequence(world, channel, reported->sequence);
  if (c)
    take_reported(world, c, k, reported);
  else
    ad_release(reported);
}
