/* Runs whenever a rank is inside a call: handles the mail that has come, advances this rank's calls between nodes, and
 * lets backend shm advance calls on the node. mail.h describes each kind of mail. */
#include "base/memory.h"
#include "comm/mpi/channel.h"
#include "comm/mpi/move.h"
#include "comm/mpi/transfer.h"
#include "comm/mpi/wait.h"
#include "comm/shm/backend.h"

/* ---- receiving mail and acting on it ---- */

static void take_receipt(mpi_world *world, const mail_receipt *receipt) {
  mpi_call *c = ad_mpi_find_call(world, receipt->tag);
  if (!c) return;
  for (uint32_t k = 0; k < c->channel->members; k++)
    if (ad_shape_rank(&c->channel->shape, k) == receipt->head.from) c->members[k].received[receipt->what]++;
}

static void take_error(mpi_world *world, const mail_error *error) {
  ad_shm_raise(world->shm->control, (uint32_t)error->rank, (ad_status)error->status, (ad_status)error->cause,
               error->text);
}

static void take_left(mpi_world *world, const mail_left *left) {
  world->left_count += !world->left[left->head.from];
  world->left[left->head.from] = left->gave_up ? 2 : 1;
}

// Handles a mail and frees it, except MAIL_CALL and MAIL_MESSAGE: the functions that handle these own the mail.
static void act(mpi_world *world, unsigned char *bytes) {
  switch (((const mail *)bytes)->kind) {
    case MAIL_CALL:
      ad_mpi_reported(world, (mail_call *)bytes);
      return;
    case MAIL_MESSAGE:
      ad_mpi_take_message(world, (mail_message_to *)bytes);
      return;
    case MAIL_REQUEST:
      ad_mpi_take_request(world, (const mail_request *)bytes);
      break;
    case MAIL_QUERY:
      ad_mpi_take_query(world, (const mail_query *)bytes);
      break;
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

// Starts to receive a mail if there is one. Returns 1 if a mail is being received.
static int start_receiving(mpi_world *world) {
  int peer;
  size_t bytes;
  if (world->incoming) return 1;
  if (!world->transport->probe(AD_LANE_MAIL, &peer, &bytes)) return 0;
  if (ad_new_bytes(bytes, 1, (void **)&world->incoming)) {
    world->incoming = NULL;
    ad_mpi_raise_memory(world, "a message from another node");
    return 0;
  }
  world->incoming_request = world->transport->receive(AD_LANE_MAIL, peer, 0, world->incoming, bytes);
  return 1;
}

static void progress_mail(mpi_world *world) {
  while (start_receiving(world) && world->transport->test(world->incoming_request)) {
    unsigned char *bytes = world->incoming;
    world->incoming = NULL;
    act(world, bytes);
  }
  if (world->outbox) ad_mpi_forget_sent(world);
}

/* ---- advancing this rank's calls ---- */

// Advances all calls that span nodes, and removes those that are complete.
static void advance(mpi_world *world) {
  for (mpi_call **link = &world->first; *link;) {
    mpi_call *c = *link;
    if (!ad_mpi_move(world, c)) {
      link = &c->next;
      continue;
    }
    ad_mpi_unpack(c);
    c->asked->backend = NULL;
    *link = c->next;
    if (world->last == &c->next) world->last = link;
    world->free_calls |= 1ull << (c - world->calls);
  }
}

void ad_mpi_progress(mpi_world *world) {
  progress_mail(world);
  advance(world);
  ad_mpi_progress_transfers(world);
  ad_shm_progress(world->shm);
  if (ad_shm_failed(world->shm)) ad_mpi_report_error(world);
}
