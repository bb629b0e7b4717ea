/* Moves the values of calls of groups that span nodes. The value of a sum is divided into slices, one for each
 * member. A member collects the addends of its slice (addends.c), sums them, and distributes the result (results.c). In
 * all other operations each member sends every other member the block for that member. */
#include "comm/mpi/move.h"

#include <string.h>
#include "base/memory.h"

static const char *values_of(const mail_call *reported) {
  return (const char *)(reported + 1) + reported->entries * sizeof(mail_message);
}

static void copy(void *to, const void *from, size_t bytes) {
  if (bytes && to != from) memcpy(to, from, bytes);
}

/* ---- memory of a call ---- */

ad_status ad_mpi_reserve(mpi_call *c) {
  const ad_call *call = c->call;
  size_t requests = 4 * (size_t)call->members + call->message_count;
  if (call->results) requests += (size_t)call->members * ad_call_addends(call, call->index) + AD_CALL_NODES_MAX;
  if (call->members > c->member_places) {
    AD_TRY(ad_grow(&c->members, c->member_places, call->members));
    c->member_places = call->members;
  }
  memset(c->members, 0, call->members * sizeof *c->members);
  if (requests > c->request_places) {
    AD_TRY(ad_grow(&c->requests, c->request_places, requests));
    c->request_places = requests;
  }
  c->request_count = 0;
  c->passed_on = 1;
  c->unasked = call->members - 1;
  return ad_mpi_reserve_addends(c);
}

/* ---- the messages of an exchange ---- */

// Returns the n-th message that this rank sends to itself. There must be more than n of them.
static const ad_message *own_send(const ad_call *call, uint32_t n) {
  size_t i = 0;
  for (;; i++)
    if (call->messages[i].send && call->messages[i].peer == call->index && n-- == 0) return &call->messages[i];
}

// Receives a message: by a copy if this rank sent it to itself; out of the sender's mail if all messages of the sender
// to this rank are short; else by MPI.
static void receive_message(mpi_world *world, mpi_call *c, const ad_message *message, uint32_t own, size_t *taken) {
  uint32_t k = (uint32_t)message->peer;
  mpi_span to = {message->receive, message->count * c->call->element};
  if (k == c->channel->index) {
    if (to.bytes) memmove(to.at, own_send(c->call, own)->send, to.bytes);
    return;
  }
  const mail_call *reported = c->members[k].reported;
  uint64_t total = 0;
  for (uint32_t i = 0; i < reported->entries; i++) {
    const mail_message *entry = &((const mail_message *)(reported + 1))[i];
    total += entry->sends ? entry->bytes : 0;
  }
  if (total <= MAIL_INLINE) {
    copy(to.at, values_of(reported) + taken[k], to.bytes);
    taken[k] += to.bytes;
  } else {
    ad_mpi_add_request(c, ad_mpi_receive(world, c, k, PHASE_RESULTS, to));
  }
}

// Sets *out to the number of this rank's messages to itself, on the sending side if `sends` is 1, else on the receiving
// side. Returns 1 if there are any.
static int has_own_messages(const ad_call *call, int sends, uint32_t *out) {
  *out = 0;
  for (size_t i = 0; i < call->message_count; i++)
    *out += call->messages[i].peer == call->index && !call->messages[i].send == !sends;
  return *out != 0;
}

static void raise_own_messages(mpi_world *world, uint32_t sent, uint32_t received) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "collectives do not match: in an exchange, rank %u sends %u message%s to itself, and receives %u",
              world->rank, sent, ad_plural(sent), received);
  ad_mpi_raise(world, AD_MISMATCH, words);
}

// Starts to send and receive those messages of an exchange that did not come with the mail that announced the calls.
static void begin_exchange(mpi_world *world, mpi_call *c) {
  const ad_call *call = c->call;
  size_t taken[SHM_RANKS_MAX] = {0};
  uint32_t own = 0, sent, received;
  has_own_messages(call, 1, &sent);
  has_own_messages(call, 0, &received);
  if (sent != received) {
    raise_own_messages(world, sent, received);
    return;
  }
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    mpi_span from = {(char *)(uintptr_t)message->send, message->count * call->element};
    if (!message->send)
      receive_message(world, c, message, own, taken);
    else if (message->peer != call->index && ad_mpi_sent_bytes(call, (uint32_t)message->peer) > MAIL_INLINE)
      ad_mpi_add_request(c, ad_mpi_send(world, c, (uint32_t)message->peer, PHASE_RESULTS, from));
    own += !message->send && message->peer == call->index;
  }
  for (uint32_t k = 0; k < call->members; k++) c->members[k].receives_result = 1;
  c->unasked = 0;
}

/* ---- advancing a call until it is complete ---- */

// Completes a small call: all its values came with the mail that announced the calls.
static void finish_small(const mpi_call *c) {
  const ad_call *call = c->call;
  for (uint32_t k = 0; k < call->members; k++)
    c->members[k].addends = k == call->index ? ad_mpi_addends_for(call, k).at : values_of(c->members[k].reported);
  if (call->operation->reduces)
    ad_mpi_add_up(c, call->out, call->out_bytes);
  else
    copy(call->out, c->members[call->root].addends, call->out_bytes);
}

// Computes the slice that this rank sends to all members.
static void make_slice(const mpi_call *c) {
  const ad_call *call = c->call;
  mpi_span own = ad_is_sliced(call->operation) ? ad_mpi_out_part(call, c->channel->index)
                                               : ad_mpi_span(call->out, 1, 0, call->out_bytes);
  if (call->operation->reduces)
    ad_mpi_add_up(c, own.at, own.bytes);
  else
    copy(own.at, c->members[call->root].addends, own.bytes);
}

static void begin_call(mpi_world *world, mpi_call *c) {
  int sums = ad_mpi_has_parts(c->call);
  c->stage = sums ? STAGE_PARTIALS : STAGE_DISTRIBUTING;
  if (ad_is_of_messages(c->call->operation))
    begin_exchange(world, c);
  else if (sums)
    ad_mpi_begin_collecting(world, c);
  else
    ad_mpi_begin_distributing(world, c);
}

static void release_reported(mpi_call *c) {
  for (uint32_t k = 0; k < c->channel->members; k++) {
    ad_release(c->members[k].reported);
    c->members[k].reported = NULL;
  }
}

// Advances the call as far as is possible now. Returns 1 when the call is complete.
static int moved(mpi_world *world, mpi_call *c) {
  if (c->stage == STAGE_REPORTED) {
    if (ad_mpi_is_small(c->call)) return finish_small(c), 1;
    begin_call(world, c);
  }
  if (c->stage == STAGE_PARTIALS) {
    if (!ad_mpi_has_sent_partials(world, c)) return 0;
    c->stage = STAGE_COLLECTING;
  }
  if (c->stage == STAGE_COLLECTING) {
    ad_mpi_ask_for_results(world, c);
    if (!ad_mpi_has_collected(world, c)) return 0;
    make_slice(c);
    ad_mpi_report_what_is_read(world, c);
    ad_mpi_begin_distributing(world, c);
    c->stage = STAGE_DISTRIBUTING;
  }
  return ad_mpi_has_distributed(world, c);
}

int ad_mpi_move(mpi_world *world, mpi_call *c) {
  if (c->arrived < c->channel->members || c->mismatched) return 0;
  // A small call can be completed even after an error: all its values came with the members' announcements.
  if (ad_shm_failed(world->shm) && !ad_mpi_is_small(c->call)) return 0;
  if (!moved(world, c)) return 0;
  release_reported(c);
  return 1;
}

void ad_mpi_abandon(mpi_world *world, mpi_call *c) {
  if (!ad_mpi_cancel_all(world, c)) c->space = NULL, c->space_bytes = 0;  // MPI may still write there
  release_reported(c);
}
