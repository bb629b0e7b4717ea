/* Backend mpi as the table of functions that comm.c calls. Calls of groups on one node are passed to backend shm; calls
 * of groups that span nodes are announced, matched and completed here. */
#include "comm/mpi/backend.h"

#include <time.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/call.h"
#include "comm/mpi/channel.h"
#include "comm/mpi/move.h"
#include "comm/mpi/transfer.h"
#include "comm/mpi/wait.h"
#include "comm/shm/backend.h"
#include "comm/shm/list.h"
#include "comm/shm/memory.h"
#include "comm/shm/wait.h"
#include "comm/watchdog.h"
#include "mesh/group.h"

enum {
  EXIT_OF_THE_STUCK = 1,         // exit status of ranks that did not notice an error and were killed
  MPI_GRACE_MILLISECONDS = 2000  // time from an error until ranks that do not notice it are killed
};

// Abandons all calls after an error. Callers may then reuse their buffers, so MPI must no longer use them.
static void give_up(mpi_world *world) {
  if (world->gave_up) return;
  world->gave_up = 1;
  for (mpi_call *c = world->first; c; c = c->next) ad_mpi_abandon(world, c);
  world->first = NULL;
  world->last = &world->first;
  if (world->nodes > 1) ad_mpi_abandon_transfers(world);
}

// Returns `status`, the result of a post, test or wait. If the world has an error, first sends the error to the other
// nodes, and returns the error.
static ad_status settled(mpi_world *world, ad_status status) {
  if (!ad_shm_failed(world->shm)) return status;
  ad_mpi_report_error(world);
  give_up(world);
  return status;
}

static ad_status mpi_health(void *backend_world) {
  mpi_world *world = backend_world;
  if (world->nodes > 1) ad_mpi_progress(world);
  return settled(world, ad_shm_failed(world->shm) ? ad_shm_error(world->shm->control) : AD_OK);
}

// Records the call as this rank's last, for the watchdog.
static void record_last(mpi_world *world, const ad_call *call) {
  shm_record *record = &world->shm->records[world->rank];
  record->last_op = (uint32_t)call->op;
  ad_site_write(record->last_site, call->site);
  atomic_store_explicit(&record->last_channel, 0, memory_order_relaxed);
  atomic_fetch_add_explicit(&record->calls, 1, memory_order_release);
}

// Starts a call of a group that spans nodes.
static ad_status post_spanning(mpi_world *world, mpi_channel *channel, ad_call *call) {
  mpi_call *c = &world->calls[__builtin_ctzll(world->free_calls)];
  c->call = c->asked = call;
  c->channel = channel;
  c->next = NULL;
  c->stage = STAGE_REPORTED;
  c->mismatched = 0;
  AD_TRY(ad_mpi_pack(c));
  AD_TRY(ad_mpi_reserve(c));
  AD_TRY(ad_mpi_report(world, c));
  world->free_calls &= ~(1ull << (c - world->calls));
  record_last(world, call);
  call->backend = c;
  *world->last = c;
  world->last = &c->next;
  return AD_OK;
}

static ad_status mpi_post(void *backend_world, ad_call *call) {
  mpi_world *world = backend_world;
  mpi_channel *channel;
  if (world->nodes == 1) return ad_backend_shm.post(world->shm, call);
  AD_TRY(mpi_health(world));
  if (ad_op_is_transfer(call->op)) return settled(world, ad_mpi_post_transfer(world, call));
  AD_TRY(ad_mpi_channel(world, &call->shape, &channel));
  if (channel->is_local) return settled(world, ad_backend_shm.post(world->shm, call));
  return settled(world, post_spanning(world, channel, call));
}

static ad_status mpi_test(void *backend_world, ad_call *call, int *done) {
  mpi_world *world = backend_world;
  if (world->nodes == 1) return ad_backend_shm.test(world->shm, call, done);
  if (call->backend) ad_mpi_progress(world);
  *done = ad_op_is_transfer(call->op) ? ad_mpi_transfer_done(world, call) : !call->backend;
  return *done ? AD_OK : mpi_health(world);
}

static ad_status mpi_wait(void *backend_world, ad_call *call) {
  mpi_world *world = backend_world;
  if (world->nodes == 1) return ad_backend_shm.wait(world->shm, call);
  return settled(world, ad_mpi_wait(world, call));
}

static int mpi_shares(void *backend_world, const ad_group_shape *shape) {
  const mpi_world *world = backend_world;
  int64_t members = ad_shape_members(shape);
  for (int64_t i = 0; i < members && world->nodes > 1; i++)
    if (world->node_of[ad_shape_rank(shape, i)] != world->node_of[world->rank]) return 0;
  return 1;
}

static void mpi_release(void *backend_world, const ad_group_shape *list) {
  mpi_world *world = backend_world;
  if (world->nodes == 1 || mpi_shares(world, list)) {
    ad_shm_release_list(world->shm, list);
  } else {
    ad_shm_drop_messages(world->shm, list->list);
  }
  ad_mpi_forget_list(world, list);
}

static void mpi_fail(void *backend_world, ad_status cause, const char *message) {
  mpi_world *world = backend_world;
  ad_backend_shm.fail(world->shm, cause, message);
  ad_mpi_report_error(world);
}

static ad_status mpi_alloc(void *backend_world, size_t bytes, void **out) {
  return ad_shm_alloc(((mpi_world *)backend_world)->shm, bytes, out);
}

static void mpi_free(void *backend_world, void *memory) { ad_shm_free(((mpi_world *)backend_world)->shm, memory); }

/* ---- memory that several ranks share ---- */

static ad_status mpi_share(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) {
  return ad_shm_share(((mpi_world *)world)->shm, bytes, holders, token, out);
}

static ad_status mpi_attach(void *world, size_t bytes, const ad_shared_token *token, void **out) {
  return ad_shm_attach(((mpi_world *)world)->shm, bytes, token, out);
}

/* ---- leaving the world ---- */

// Announces to all ranks that this rank leaves.
static void report_leaving(mpi_world *world) {
  atomic_store(&world->shm->records[world->rank].state, SHM_LEFT);
  ad_shm_wake_all(world->shm->control);
  mail_left left = {{MAIL_LEFT, world->rank}, ~world->free_calls != 0 || ad_mpi_is_sending(world)};
  for (uint32_t i = 0; i < world->ranks; i++)
    if (i != world->rank) ad_mpi_send_mail(world, i, &left, sizeof left, NULL, 0, NULL, 0);
  ad_mpi_flush(world);
}

// Waits until all ranks leave, since MPI ends in all ranks together. After an error, ranks that do not leave in time
// are killed.
static void wait_for_others(mpi_world *world) {
  const struct timespec nap = {.tv_nsec = 100000};
  int64_t failed_at = 0;
  while (world->left_count + 1 < world->ranks) {
    ad_mpi_progress(world);  // other ranks may still need what this rank posted
    int64_t now = ad_now();
    if (ad_shm_failed(world->shm) && !failed_at) failed_at = now;
    if (failed_at && now - failed_at > MPI_GRACE_MILLISECONDS * INT64_C(1000000))
      world->transport->abort(EXIT_OF_THE_STUCK);
    ad_watchdog_look(world->shm->dog);
    nanosleep(&nap, NULL);
  }
  ad_mpi_progress(world);  // notices that other ranks have received what this rank sent
}

static void free_calls(mpi_world *world) {
  give_up(world);
  for (int i = 0; i < MPI_CALLS; i++) {
    ad_release(world->calls[i].members);
    ad_release(world->calls[i].space);
    ad_release(world->calls[i].partials);
    ad_release(world->calls[i].pack);
    ad_release(world->calls[i].requests);
  }
}

static void mpi_close(void *backend_world) {
  mpi_world *world = backend_world;
  if (ad_shm_failed(world->shm)) ad_mpi_report_error(world);
  report_leaving(world);
  if (ad_shm_failed(world->shm)) give_up(world);
  wait_for_others(world);
  free_calls(world);
  ad_mpi_free_mail(world);
  ad_mpi_channels_free(world);
  ad_backend_shm.close(world->shm);
  // MPI_Finalize would wait for ever if requests were given up.
  if (!world->has_stray_requests) world->transport->close();
  ad_release(world->node_of);
  ad_release(world->left);
  ad_release(world->followed);
  ad_release(world->queries);
  ad_release(world);
}

const ad_backend ad_backend_mpi = {
    .name = "mpi",
    .alloc = mpi_alloc,
    .free = mpi_free,
    .shares = mpi_shares,
    .share = mpi_share,
    .attach = mpi_attach,
    .post = mpi_post,
    .test = mpi_test,
    .wait = mpi_wait,
    .release = mpi_release,
    .fail = mpi_fail,
    .health = mpi_health,
    .close = mpi_close,
};
