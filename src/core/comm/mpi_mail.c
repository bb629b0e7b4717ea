/* Small messages between any two ranks, at any time. A rank acts on its mail whenever it is inside a call; other files
 * say what each kind of mail means. */
#include <sched.h>
#include <string.h>
#include "base/clock.h"
#include "base/memory.h"
#include "comm/mpi.h"

/* ---- sending ---- */

static void keep(mpi_world *world, mpi_outgoing *outgoing) {
  outgoing->next = world->outbox;
  world->outbox = outgoing;
}

static void copy(unsigned char **to, const void *from, size_t bytes) {
  if (bytes) memcpy(*to, from, bytes);
  *to += bytes;
}

void ad_mpi_send_mail(mpi_world *world, uint32_t to, const void *head, size_t head_bytes, const void *table,
                      size_t table_bytes, const void *values, size_t value_bytes) {
  mpi_outgoing *outgoing;
  size_t bytes = head_bytes + table_bytes + value_bytes;
  if (ad_new_bytes(sizeof *outgoing + bytes, 1, (void **)&outgoing)) {
    ad_mpi_raise(world, AD_PEER_FAILED, "no memory for a message to another node");
    return;
  }
  unsigned char *at = outgoing->bytes;
  copy(&at, head, head_bytes);
  copy(&at, table, table_bytes);
  copy(&at, values, value_bytes);
  outgoing->request = world->transport->send(AD_LANE_MAIL, (int)to, 0, outgoing->bytes, bytes);
  keep(world, outgoing);
  if (!outgoing->request) ad_mpi_raise(world, AD_PEER_FAILED, "no memory for a message to another node");
}

static void forget_sent(mpi_world *world) {
  for (mpi_outgoing **link = &world->outbox; *link;) {
    mpi_outgoing *outgoing = *link;
    if (outgoing->request && !world->transport->test(outgoing->request)) {
      link = &outgoing->next;
      continue;
    }
    *link = outgoing->next;
    ad_release(outgoing);
  }
}

void ad_mpi_flush(mpi_world *world) {
  int64_t end = ad_now() + 1000000000;
  while (world->outbox && ad_now() < end) {
    forget_sent(world);
    sched_yield();
  }
}

void ad_mpi_tell_error(mpi_world *world) {
  const shm_control *control = world->shm->control;
  if (world->told_error || atomic_load(&control->failed) != 2) return;
  world->told_error = 1;
  if (control->fail_rank != (int32_t)world->rank) return;
  mail_error error = {.head = {MAIL_ERROR, world->rank}, .rank = control->fail_rank};
  error.status = control->fail_status;
  error.cause = control->fail_cause;
  memcpy(error.text, control->fail_text, sizeof error.text);
  for (uint32_t i = 0; i < world->ranks; i++)
    if (world->node_of[i] != world->node_of[world->rank] && !world->left[i])
      ad_mpi_send_mail(world, i, &error, sizeof error, NULL, 0, NULL, 0);
  ad_mpi_flush(world);
}

/* ---- receiving ---- */

static void take_receipt(mpi_world *world, const mail_receipt *receipt) {
  mpi_call *c = ad_mpi_find_call(world, receipt->tag);
  if (!c) return;
  for (uint32_t k = 0; k < c->channel->members; k++)
    if (ad_shape_rank(&c->channel->shape, k) == receipt->head.from) c->members[k].received |= (uint8_t)receipt->what;
}

static void take_error(mpi_world *world, const mail_error *error) {
  ad_shm_raise(world->shm->control, (uint32_t)error->rank, (ad_status)error->status, (ad_status)error->cause,
               error->text);
}

static void take_left(mpi_world *world, const mail_left *left) {
  world->left_count += !world->left[left->head.from];
  world->left[left->head.from] = left->gave_up ? 2 : 1;
}

// Acts on a mail and frees it, unless it tells of a call: ad_mpi_told then owns it.
static void act(mpi_world *world, unsigned char *bytes) {
  switch (((const mail *)bytes)->kind) {
    case MAIL_CALL:
      ad_mpi_told(world, (mail_call *)bytes);
      return;
    case MAIL_RECEIPT:
      take_receipt(world, (const mail_receipt *)bytes);
      break;
    case MAIL_ERROR:
      take_error(world, (const mail_error *)bytes);
      break;
    case MAIL_LEFT:
      take_left(world, (const mail_left *)bytes);
      break;
    case MAIL_SEARCH:
      ad_mpi_follow_search(world, (const mail_search *)bytes);
      break;
  }
  ad_release(bytes);
}

static int start_receiving(mpi_world *world) {
  int peer;
  size_t bytes;
  if (world->incoming) return 1;
  if (!world->transport->probe(AD_LANE_MAIL, &peer, &bytes)) return 0;
  if (ad_new_bytes(bytes, 1, (void **)&world->incoming)) {
    world->incoming = NULL;
    ad_mpi_raise(world, AD_PEER_FAILED, "no memory for a message from another node");
    return 0;
  }
  world->incoming_request = world->transport->receive(AD_LANE_MAIL, peer, 0, world->incoming, bytes);
  return 1;
}

void ad_mpi_progress_mail(mpi_world *world) {
  while (start_receiving(world) && world->transport->test(world->incoming_request)) {
    unsigned char *bytes = world->incoming;
    world->incoming = NULL;
    act(world, bytes);
  }
  if (world->outbox) forget_sent(world);
}

void ad_mpi_free_mail(mpi_world *world) {
  if (world->incoming) {
    world->has_stray_requests = 1;
    // MPI may still write there.
    if (world->transport->cancel(world->incoming_request)) ad_release(world->incoming);
  }
  while (world->outbox) {
    mpi_outgoing *outgoing = world->outbox;
    world->outbox = outgoing->next;
    world->has_stray_requests = 1;
    if (world->transport->cancel(outgoing->request)) ad_release(outgoing);
  }
}
