/* Sends and receives the values of calls, and sends receipts. */
#include "comm/mpi/traffic.h"

// Returns the request. A NULL request means that there was no memory for it, which becomes the world's error.
static void *noted(mpi_world *world, void *request) {
  if (!request) ad_mpi_raise_memory(world, "a message between nodes");
  return request;
}

static uint32_t rank_of(const mpi_call *c, uint32_t k) { return (uint32_t)ad_shape_rank(&c->channel->shape, k); }

void *ad_mpi_send(mpi_world *world, const mpi_call *c, uint32_t k, mpi_phase phase, mpi_span from) {
  int tag = (int)(c->tag + phase);
  return noted(world, world->transport->send(AD_LANE_DATA, (int)rank_of(c, k), tag, from.at, from.bytes));
}

void *ad_mpi_receive(mpi_world *world, const mpi_call *c, uint32_t k, mpi_phase phase, mpi_span to) {
  int tag = (int)(c->members[k].reported->tag + phase);
  return noted(world, world->transport->receive(AD_LANE_DATA, (int)rank_of(c, k), tag, to.at, to.bytes));
}

void ad_mpi_add_request(mpi_call *c, void *request) {
  if (request) c->requests[c->request_count++] = request;
}

int ad_mpi_is_done(mpi_world *world, void **request) {
  if (*request && world->transport->test(*request)) *request = NULL;
  return !*request;
}

int ad_mpi_all_done(mpi_world *world, mpi_call *c) {
  for (size_t i = 0; i < c->request_count;) {
    if (!ad_mpi_is_done(world, &c->requests[i])) {
      i++;
      continue;
    }
    c->requests[i] = c->requests[--c->request_count];
  }
  return c->request_count == 0;
}

static void cancel(mpi_world *world, void **request, int *safe) {
  if (!*request) return;
  world->has_stray_requests = 1;
  *safe &= world->transport->cancel(*request);
  *request = NULL;
}

int ad_mpi_cancel_all(mpi_world *world, mpi_call *c) {
  int safe = 1;
  for (size_t i = 0; i < c->request_count; i++) cancel(world, &c->requests[i], &safe);
  for (uint32_t k = 0; k < c->channel->members; k++) {
    cancel(world, &c->members[k].sending, &safe);
    cancel(world, &c->members[k].receiving, &safe);
    cancel(world, &c->members[k].arriving, &safe);
  }
  c->request_count = 0;
  return safe;
}

void ad_mpi_send_receipt(mpi_world *world, const mpi_call *c, uint32_t k, mpi_receipt what) {
  mail_receipt receipt = {{MAIL_RECEIPT, world->rank}, c->members[k].reported->tag, what};
  ad_mpi_send_mail(world, rank_of(c, k), &receipt, sizeof receipt, NULL, 0, NULL, 0);
}
