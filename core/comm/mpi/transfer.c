/* Transfers in a world of several nodes. Ranks of one node use the transfers of backend shm. Between nodes a message
 * comes as mail, with its bytes if they are few. Backend shm matches it like any other message (ad_shm_deliver), so a
 * receive from any source takes messages of all nodes. If the bytes are many, they stay with the sender until the
 * receiver has matched the message and asks for them by the message's number; then they are sent as one message on the
 * data lane. A sender that waits, and is not asked for a while, copies the bytes into its own memory and continues. It
 * still answers requests later: no rank leaves the world before all ranks do. */
#include "comm/mpi/transfer.h"

#include <string.h>
#include "base/clock.h"
#include "base/memory.h"
#include "comm/shm/wait.h"

// Nanoseconds. patience: how long a sender waits for the receiver's request before it copies the bytes. retry_interval:
// how long it waits after it found no memory for the copy. data_patience: how long a receiver waits for bytes after
// their sender has left.
static const int64_t patience = 1000000, retry_interval = 10000000, data_patience = 1000000000;

/* A matched receive whose bytes are in flight. */
typedef struct bringing {
  void *request;
  int64_t since;
} bringing;

/* ---- sending a message to another node ---- */

static void write_message(const mpi_world *world, const ad_call *call, mail_message_to *out) {
  *out = (mail_message_to){.head = {MAIL_MESSAGE, world->rank}, .group = call->shape.list, .tag = call->tag};
  out->bytes = call->in_bytes;
  out->dtype = (uint32_t)call->dtype;
  ad_site_write(out->site, call->site);
}

// Frees the records of complete sends. They are kept until the next send, since a wait in progress may still read them.
static void free_spent(mpi_world *world) {
  while (world->spent) {
    mpi_send *next = world->spent->next;
    ad_release(world->spent);
    world->spent = next;
  }
}

// Makes the record of a large message. Its bytes stay on this rank until the receiver asks for them.
static ad_status make_send(mpi_world *world, ad_call *call, mpi_send **out) {
  mpi_send *send;
  free_spent(world);
  AD_TRY(ad_new(1, &send));
  *send = (mpi_send){.call = call, .peer = (uint32_t)call->peer, .bytes = call->in_bytes, .since = ad_now()};
  send->side.under = (shm_call){.call = call, .mode = SHM_TRANSFER};
  send->side.is_put = 1;
  send->number = ++world->sends_made;
  send->tag = (uint32_t)(world->calls_made++ % world->tags) * 2;
  send->next = world->sends;
  *out = world->sends = send;
  return AD_OK;
}

// Sends a message as mail, with its bytes if they are few.
static ad_status post_send(mpi_world *world, ad_call *call) {
  mail_message_to message;
  mpi_send *send;
  size_t values = call->in_bytes <= MAIL_INLINE ? call->in_bytes : 0;
  write_message(world, call, &message);
  if (values < call->in_bytes) {
    AD_TRY(make_send(world, call, &send));
    message.number = send->number;
    message.message_tag = send->tag;
    call->backend = send;
  }
  world->shm->transfers->sent[call->peer]++;
  ad_mpi_send_mail(world, (uint32_t)call->peer, &message, sizeof message, NULL, 0, call->in, values);
  return AD_OK;
}

ad_status ad_mpi_post_transfer(mpi_world *world, ad_call *call) {
  if ((int)call->op == AD_OP_SEND && world->node_of[call->peer] != world->node_of[world->rank])
    return post_send(world, call);
  return ad_shm_post_transfer(world->shm, call);
}

static mpi_send *find_send(mpi_world *world, uint64_t number) {
  mpi_send *send = world->sends;
  while (send && send->number != number) send = send->next;
  return send;
}

void ad_mpi_take_request(mpi_world *world, const mail_request *asked) {
  mpi_send *send = find_send(world, asked->number);
  if (!send || send->request) return;
  const void *from = send->copy ? send->copy : send->call->in;
  send->request = world->transport->send(AD_LANE_DATA, (int)send->peer, (int)send->tag, from, send->bytes);
  if (!send->request) ad_mpi_raise_memory(world, "a message between nodes");
}

static void end_send(mpi_world *world, mpi_send *send) {
  mpi_send **link = &world->sends;
  while (*link != send) link = &(*link)->next;
  *link = send->next;
  if (send->call) send->call->backend = NULL;
  ad_release(send->copy);
  send->copy = NULL;
  send->next = world->spent;
  world->spent = send;
}

void ad_mpi_progress_transfers(mpi_world *world) {
  for (mpi_send *send = world->sends, *next; send; send = next) {
    next = send->next;
    if (send->request && world->transport->test(send->request)) end_send(world, send);
  }
}

// Copies the bytes of a message that nobody has requested for a while, if there is memory; the send is then complete.
static void copy_away(mpi_world *world, mpi_send *send) {
  int64_t now = ad_now();
  if (send->request || now - send->since < patience || now < send->retry) return;
  send->retry = now + retry_interval;
  if (ad_new_bytes(send->bytes, 1, &send->copy)) {
    send->copy = NULL;
    if (world->left[send->peer]) ad_shm_raise_left(world->shm, &send->side.under, send->peer);
    return;
  }
  memcpy(send->copy, send->call->in, send->bytes);
  send->call->backend = NULL;
  send->call = NULL;
}

int ad_mpi_is_sending(const mpi_world *world) {
  const mpi_send *send = world->sends;
  while (send && !send->call) send = send->next;
  return send != NULL;
}

int ad_mpi_transfer_done(mpi_world *world, ad_call *call) {
  if (!call->backend) return 1;
  for (mpi_send *send = world->sends; send; send = send->next)
    if (send == call->backend) {
      if (!ad_shm_failed(world->shm)) copy_away(world, send);
      return !call->backend;
    }
  return ad_shm_transfer_done(world->shm, call);
}

/* ---- receiving a message from another node ---- */

static mail_message_to *mail_of(const shm_envelope *envelope) {
  return (mail_message_to *)(uintptr_t)envelope->at;  // NOLINT(performance-no-int-to-ptr)
}

// Starts to receive the bytes of a large message, and asks the sender for them.
static ad_status ask(mpi_world *world, shm_transfer *t, const mail_message_to *message) {
  bringing *b;
  mail_request asked = {{MAIL_REQUEST, world->rank}, message->number};
  AD_TRY(ad_new(1, &b));
  b->since = ad_now();
  b->request = world->transport->receive(AD_LANE_DATA, (int)message->head.from, (int)message->message_tag,
                                         t->under.call->out, message->bytes);
  t->bringing = b;
  if (!b->request) return ad_fail(AD_MEMORY, "no memory for a message between nodes");
  ad_mpi_send_mail(world, message->head.from, &asked, sizeof asked, NULL, 0, NULL, 0);
  return AD_OK;
}

static void forget_mail(shm_transfer *t) {
  ad_release(mail_of(&t->envelope));
  t->envelope.at = 0;
}

// Returns 1 when the bytes of a large message have come.
static int bring_large(mpi_world *world, shm_transfer *t) {
  const mail_message_to *message = mail_of(&t->envelope);
  if (!t->bringing && ask(world, t, message)) {
    ad_mpi_raise_memory(world, "a message between nodes");
    return 0;
  }
  bringing *b = t->bringing;
  if (world->transport->test(b->request)) {
    ad_release(b);
    t->bringing = NULL;
    return 1;
  }
  if (world->left[message->head.from] == 2 && ad_now() - b->since > data_patience)
    ad_shm_raise_left(world->shm, &t->under, message->head.from);
  return 0;
}

static int bring(void *context, shm_transfer *t) {
  const mail_message_to *message = mail_of(&t->envelope);
  if (message->number) {
    if (!bring_large(context, t)) return 0;
  } else if (message->bytes) {
    memcpy(t->under.call->out, message + 1, message->bytes);
  }
  forget_mail(t);
  return 1;
}

void ad_mpi_take_message(mpi_world *world, mail_message_to *message) {
  shm_envelope envelope = {.group = message->group, .tag = message->tag, .bytes = message->bytes};
  envelope.at = (uint64_t)(uintptr_t)message;
  envelope.sender = message->head.from;
  envelope.where = SHM_ELSEWHERE;
  envelope.dtype = (uint8_t)message->dtype;
  memcpy(envelope.site, message->site, sizeof envelope.site);
  if (!ad_shm_deliver(world->shm, &envelope)) return;
  ad_release(message);
  ad_mpi_raise_memory(world, "a message from another node");
}

/* ---- starting and abandoning transfers ---- */

void ad_mpi_transfers_begin(mpi_world *world) {
  world->outside = (shm_outside){.context = world, .bring = bring, .left = world->left};
  world->shm->outside = &world->outside;
}

// Cancels a request. Returns 1 if MPI no longer uses its memory; 0 if MPI still may, so that the memory must not be
// freed.
static int cancel(mpi_world *world, void *request) {
  if (!request) return 1;
  world->has_stray_requests = 1;
  return world->transport->cancel(request);
}

static void abandon_receives(mpi_world *world) {
  for (shm_transfer *t = world->shm->transfers->matched; t; t = t->next) {
    bringing *b = t->bringing;
    if (!b) continue;
    cancel(world, b->request);
    ad_release(b);
    t->bringing = NULL;
  }
}

void ad_mpi_abandon_transfers(mpi_world *world) {
  abandon_receives(world);
  free_spent(world);
  while (world->sends) {
    mpi_send *send = world->sends;
    world->sends = send->next;
    int is_safe = cancel(world, send->request);
    if (is_safe) ad_release(send->copy);
    ad_release(send);
  }
}
