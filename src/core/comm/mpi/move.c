/* The values of calls that span nodes. A sum: member k gets all addends of its part (reads those of its own node in the
 * shared file, receives the others), sums them in the order of the tree, and gives the result to all. Everything else:
 * each member gives each its block. Who is on the same node writes into the other's output in the file, if that is
 * where it lies. */
#include "comm/mpi/move.h"

#include <string.h>
#include "base/memory.h"
#include "kernels/kernels.h"
#include "comm/mpi/spans.h"
#include "comm/shm/memory.h"

static const char *values_of(const mail_call *told) {
  return (const char *)(told + 1) + told->entries * sizeof(mail_message);
}

static void copy(void *to, const void *from, size_t bytes) {
  if (bytes && to != from) memcpy(to, from, bytes);
}

/* ---- room ---- */

static ad_status reserve_parts(mpi_call *c) {
  const ad_call *call = c->call;
  int sums = ad_op_reduces(call->op) && !ad_mpi_is_small(call);
  size_t bytes = sums ? ad_mpi_in_part(call, call->index).bytes * (call->members - 1) : 0;
  if (bytes <= c->part_bytes) return AD_OK;
  ad_release(c->parts);
  c->parts = NULL;
  c->part_bytes = 0;
  AD_TRY(ad_new(bytes, &c->parts));
  c->part_bytes = bytes;
  return AD_OK;
}

ad_status ad_mpi_reserve(mpi_call *c) {
  const ad_call *call = c->call;
  size_t requests = 2 * call->members + call->message_count;
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
  return reserve_parts(c);
}

/* ---- requests ---- */

static void *noted(mpi_world *world, void *request) {
  if (!request) ad_mpi_raise(world, AD_PEER_FAILED, "no memory for a message between nodes");
  return request;
}

static uint32_t rank_of(const mpi_call *c, uint32_t k) { return (uint32_t)ad_shape_rank(&c->channel->shape, k); }

static void *send_to(mpi_world *world, const mpi_call *c, uint32_t k, uint32_t phase, mpi_span from) {
  return noted(world,
               world->transport->send(AD_LANE_DATA, (int)rank_of(c, k), (int)(c->tag + phase), from.at, from.bytes));
}

static void *receive_from(mpi_world *world, const mpi_call *c, uint32_t k, uint32_t phase, mpi_span to) {
  int tag = (int)(c->members[k].told->tag + phase);
  return noted(world, world->transport->receive(AD_LANE_DATA, (int)rank_of(c, k), tag, to.at, to.bytes));
}

static void add_request(mpi_call *c, void *request) {
  if (request) c->requests[c->request_count++] = request;
}

// 1 if the request is done; *request is then NULL.
static int is_done(mpi_world *world, void **request) {
  if (*request && world->transport->test(*request)) *request = NULL;
  return !*request;
}

static int all_done(mpi_world *world, mpi_call *c) {
  for (size_t i = 0; i < c->request_count;) {
    if (!is_done(world, &c->requests[i])) {
      i++;
      continue;
    }
    c->requests[i] = c->requests[--c->request_count];
  }
  return c->request_count == 0;
}

static void send_receipt(mpi_world *world, const mpi_call *c, uint32_t k, mpi_receipt what) {
  mail_receipt receipt = {{MAIL_RECEIPT, world->rank}, c->members[k].told->tag, what};
  ad_mpi_send_mail(world, rank_of(c, k), &receipt, sizeof receipt, NULL, 0, NULL, 0);
}

/* ---- collecting the addends of the own part ---- */

static void give_addends(mpi_world *world, mpi_call *c, uint32_t k) {
  mpi_span addends = ad_mpi_addends_for(c->call, k);
  if (!addends.bytes) return;
  if (ad_mpi_on_node(world, c->channel, k) && ad_shm_offset(world->shm, addends.at, addends.bytes))
    c->members[k].awaited |= RECEIPT_READ;
  else
    c->members[k].sending = send_to(world, c, k, 0, addends);
}

static void get_addends(mpi_world *world, mpi_call *c, uint32_t k, mpi_span own, uint32_t place) {
  mpi_member *member = &c->members[k];
  mpi_span to = own;
  if (!own.bytes || !ad_mpi_contributes(c->call, k)) return;
  if (c->call->op != AD_BROADCAST) to.at = c->parts + place * own.bytes;
  member->addends = to.at;
  if (ad_mpi_on_node(world, c->channel, k) && member->told->in)
    member->addends = ad_shm_at(world->shm, member->told->in);
  else
    member->receiving = receive_from(world, c, k, 0, to);
}

static void begin_collecting(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members, index = c->channel->index;
  mpi_span own = c->call->op == AD_BROADCAST ? ad_mpi_out_part(c->call, index) : ad_mpi_in_part(c->call, index);
  for (uint32_t i = 1; i < members; i++) {
    get_addends(world, c, (index + i) % members, own, i - 1);
    give_addends(world, c, (index + i) % members);
  }
  c->members[index].addends = ad_mpi_addends_for(c->call, index).at;
  c->stage = STAGE_COLLECTING;
}

static int has_collected(mpi_world *world, mpi_call *c) {
  int all = 1;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    is_done(world, &c->members[k].sending);
    all &= is_done(world, &c->members[k].receiving);
  }
  return all;
}

static void sum(const mpi_call *c, void *out, size_t bytes) {
  const ad_call *call = c->call;
  const void *sources[SHM_RANKS_MAX];
  for (uint32_t k = 0; k < call->members; k++) sources[k] = c->members[k].addends;
  if (bytes) ad_reduce(&out, 1, sources, call->members, &call->reducing, bytes / call->out_element);
}

static void make_part(mpi_world *world, mpi_call *c) {
  const ad_call *call = c->call;
  uint32_t index = c->channel->index;
  mpi_span own =
      call->op == AD_REDUCE_SCATTER ? ad_mpi_span(call->out, 1, 0, call->out_bytes) : ad_mpi_out_part(call, index);
  if (call->op == AD_BROADCAST)
    copy(own.at, c->members[call->root].addends, own.bytes);
  else
    sum(c, own.at, own.bytes);
  for (uint32_t k = 0; k < call->members; k++)
    if (k != index && own.bytes && ad_mpi_contributes(call, k) && ad_mpi_on_node(world, c->channel, k) &&
        c->members[k].told->in)
      send_receipt(world, c, k, RECEIPT_READ);
}

/* ---- distributing ---- */

static int is_inline(const ad_call *call, size_t bytes) {
  return (call->op == AD_ALL_GATHER || call->op == AD_ALL_TO_ALL) && bytes <= MAIL_INLINE;
}

static void give_result(mpi_world *world, mpi_call *c, uint32_t k) {
  mpi_span from = ad_mpi_result_for(c->call, k);
  if (!from.bytes || is_inline(c->call, from.bytes)) return;
  uint64_t out = c->members[k].told->out;
  if (ad_mpi_on_node(world, c->channel, k) && out) {
    ad_copy(ad_shm_at(world->shm, out), from.at, from.bytes);
    send_receipt(world, c, k, RECEIPT_WRITTEN);
  } else {
    add_request(c, send_to(world, c, k, 1, from));
  }
}

// Starts to receive member k's block or slice, once this rank's addends for k are sent: in place, what comes from k is
// written where those lie.
static void ask_for_result(mpi_world *world, mpi_call *c, uint32_t k) {
  mpi_member *member = &c->members[k];
  mpi_span to = ad_mpi_result_from(c->call, k);
  if (member->receives_result || !is_done(world, &member->sending)) return;
  member->receives_result = 1;
  if (!to.bytes) return;
  if (is_inline(c->call, to.bytes))
    memcpy(to.at, values_of(member->told), to.bytes);
  else if (ad_mpi_on_node(world, c->channel, k) && ad_shm_offset(world->shm, to.at, to.bytes))
    member->awaited |= RECEIPT_WRITTEN;
  else
    add_request(c, receive_from(world, c, k, 1, to));
}

static void ask_for_results(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members;
  for (uint32_t i = 1; i < members; i++) ask_for_result(world, c, (c->channel->index + i) % members);
}

static void keep_own(const ad_call *call) {
  mpi_span from = ad_mpi_result_for(call, call->index), to = ad_mpi_result_from(call, call->index);
  if (call->op == AD_ALL_GATHER || call->op == AD_ALL_TO_ALL) copy(to.at, from.at, from.bytes);
  if (call->op == AD_BROADCAST && call->index == call->root) copy(call->out, call->in, call->out_bytes);
}

static void begin_distributing(mpi_world *world, mpi_call *c) {
  uint32_t members = c->channel->members;
  keep_own(c->call);
  for (uint32_t i = 1; i < members; i++) give_result(world, c, (c->channel->index + i) % members);
  c->stage = STAGE_DISTRIBUTING;
}

static int has_distributed(mpi_world *world, mpi_call *c) {
  int all = 1;
  ask_for_results(world, c);
  for (uint32_t k = 0; k < c->channel->members; k++) {
    const mpi_member *member = &c->members[k];
    all &= k == c->channel->index || (member->receives_result && (member->awaited & ~member->received) == 0);
  }
  return all_done(world, c) && all;
}

/* ---- exchange ---- */

// Number n of this rank's messages to itself, as sent.
static const ad_message *own_send(const ad_call *call, uint32_t n) {
  size_t i = 0;
  for (;; i++)
    if (call->messages[i].send && call->messages[i].peer == call->index && n-- == 0) return &call->messages[i];
}

static void receive_message(mpi_world *world, mpi_call *c, const ad_message *message, uint32_t own, size_t *taken) {
  uint32_t k = (uint32_t)message->peer;
  mpi_span to = {message->receive, message->count * c->call->element};
  if (k == c->channel->index) {
    if (to.bytes) memmove(to.at, own_send(c->call, own)->send, to.bytes);
    return;
  }
  const mail_call *told = c->members[k].told;
  uint64_t total = 0;
  for (uint32_t i = 0; i < told->entries; i++) {
    const mail_message *entry = &((const mail_message *)(told + 1))[i];
    total += entry->sends ? entry->bytes : 0;
  }
  if (total <= MAIL_INLINE) {
    copy(to.at, values_of(told) + taken[k], to.bytes);
    taken[k] += to.bytes;
  } else {
    add_request(c, receive_from(world, c, k, 1, to));
  }
}

static int has_own_messages(const ad_call *call, int sends, uint32_t *out) {
  *out = 0;
  for (size_t i = 0; i < call->message_count; i++)
    *out += call->messages[i].peer == call->index && !call->messages[i].send == !sends;
  return *out != 0;
}

static void begin_exchange(mpi_world *world, mpi_call *c) {
  const ad_call *call = c->call;
  size_t taken[SHM_RANKS_MAX] = {0};
  uint32_t own = 0, sent, received;
  has_own_messages(call, 1, &sent);
  has_own_messages(call, 0, &received);
  if (sent != received) {
    ad_mpi_raise(world, AD_MISMATCH,
                 "collectives do not match: an exchange's messages from a rank to itself do not pair");
    return;
  }
  for (size_t i = 0; i < call->message_count; i++) {
    const ad_message *message = &call->messages[i];
    mpi_span from = {(char *)(uintptr_t)message->send, message->count * call->element};
    if (!message->send)
      receive_message(world, c, message, own, taken);
    else if (message->peer != call->index && ad_mpi_sent_bytes(call, (uint32_t)message->peer) > MAIL_INLINE)
      add_request(c, send_to(world, c, (uint32_t)message->peer, 1, from));
    own += !message->send && message->peer == call->index;
  }
  for (uint32_t k = 0; k < call->members; k++) c->members[k].receives_result = 1;
  c->stage = STAGE_DISTRIBUTING;
}

/* ---- the whole ---- */

// A call whose values came with the mail: all of them are here.
static void finish_small(const mpi_call *c) {
  const ad_call *call = c->call;
  for (uint32_t k = 0; k < call->members; k++)
    c->members[k].addends = k == call->index ? ad_mpi_addends_for(call, k).at : values_of(c->members[k].told);
  if (call->op == AD_BROADCAST)
    copy(call->out, c->members[call->root].addends, call->out_bytes);
  else if (call->op != AD_BARRIER)
    sum(c, call->out, call->out_bytes);
}

static void begin(mpi_world *world, mpi_call *c) {
  if (c->call->op == AD_EXCHANGE)
    begin_exchange(world, c);
  else if (ad_mpi_has_parts(c->call))
    begin_collecting(world, c);
  else
    begin_distributing(world, c);
}

static void forget(mpi_call *c) {
  for (uint32_t k = 0; k < c->channel->members; k++) {
    ad_release(c->members[k].told);
    c->members[k].told = NULL;
  }
}

static int moved(mpi_world *world, mpi_call *c) {
  if (c->stage == STAGE_TOLD) {
    if (ad_mpi_is_small(c->call)) return finish_small(c), 1;
    begin(world, c);
  }
  if (c->stage == STAGE_COLLECTING) {
    ask_for_results(world, c);
    if (!has_collected(world, c)) return 0;
    make_part(world, c);
    begin_distributing(world, c);
  }
  return has_distributed(world, c);
}

int ad_mpi_move(mpi_world *world, mpi_call *c) {
  if (c->arrived < c->channel->members || c->mismatched) return 0;
  // A small call that all members had told before the world failed can still be completed.
  if (ad_shm_failed(world->shm) && !ad_mpi_is_small(c->call)) return 0;
  if (!moved(world, c)) return 0;
  forget(c);
  return 1;
}

static void abandon_request(mpi_world *world, void **request, int *safe) {
  if (!*request) return;
  world->has_stray_requests = 1;
  *safe &= world->transport->cancel(*request);
  *request = NULL;
}

void ad_mpi_abandon(mpi_world *world, mpi_call *c) {
  int safe = 1;
  for (size_t i = 0; i < c->request_count; i++) abandon_request(world, &c->requests[i], &safe);
  for (uint32_t k = 0; k < c->channel->members; k++) {
    abandon_request(world, &c->members[k].sending, &safe);
    abandon_request(world, &c->members[k].receiving, &safe);
  }
  if (!safe) c->parts = NULL, c->part_bytes = 0;  // MPI may still write there
  c->request_count = 0;
  forget(c);
}
