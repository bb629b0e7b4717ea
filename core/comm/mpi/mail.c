/* Sends small messages (mail) between any two ranks, at any time. progress.c receives mail and handles it. */
#include "comm/mpi/mail.h"

#include <sched.h>
#include <string.h>
#include "base/clock.h"
#include "base/memory.h"
#include "comm/mpi/world.h"

/* ---- sending mail (small messages between ranks) ---- */

static void append_outgoing(mpi_world *world, mpi_outgoing *outgoing) {
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
    ad_mpi_raise_memory(world, "a message to another node");
    return;
  }
  unsigned char *at = outgoing->bytes;
  copy(&at, head, head_bytes);
  copy(&at, table, table_bytes);
  copy(&at, values, value_bytes);
  outgoing->request = world->transport->send(AD_LANE_MAIL, (int)to, 0, outgoing->bytes, bytes);
  append_outgoing(world, outgoing);
  if (!outgoing->request) ad_mpi_raise_memory(world, "a message to another node");
}

void ad_mpi_forget_sent(mpi_world *world) {
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
    ad_mpi_forget_sent(world);
    sched_yield();
  }
}

void ad_mpi_report_error(mpi_world *world) {
  const shm_control *control = world->shm->control;
  if (world->reported_error || atomic_load(&control->failed) != 2) return;
  world->reported_error = 1;
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

void ad_mpi_free_mail(mpi_world *world) {
  if (world->incoming) {
    world->has_stray_requests = 1;
    // Frees the buffer only if the receive is cancelled; otherwise MPI may still write there.
    if (world->transport->cancel(world->incoming_request)) ad_release(world->incoming);
  }
  while (world->outbox) {
    mpi_outgoing *outgoing = world->outbox;
    world->outbox = outgoing->next;
    world->has_stray_requests = 1;
    if (world->transport->cancel(outgoing->request)) ad_release(outgoing);
  }
}
