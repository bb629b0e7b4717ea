/* Backend shm as the table of functions that comm.c calls. Keeps the list of calls in flight, each of which is first
 * published, then matched, then complete. */
#include "comm/shm/backend.h"

#include <sched.h>
#include "base/memory.h"
#include "comm/shm/deaths.h"
#include "comm/shm/error.h"
#include "comm/shm/file.h"
#include "comm/shm/list.h"
#include "comm/shm/memory.h"
#include "comm/shm/pull.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"
#include "comm/shm/work.h"
#include "comm/slice.h"
#include "comm/watchdog.h"
#include "mesh/group.h"

enum { VAIN_TESTS = 16 };

static void append(shm_world *world, shm_call *c) {
  c->next = NULL;
  *world->last = c;
  world->last = &c->next;
}

// Removes the call at *link from the list.
static void take_out(shm_world *world, shm_call **link) {
  shm_call *c = *link;
  *link = c->next;
  if (world->last == &c->next) world->last = link;
}

// Releases a call's staging buffer, and its element of world->calls.
static void return_call(shm_world *world, shm_call *c) {
  ad_shm_give_staging(world, c->staging);
  world->free_calls |= 1ull << (c - world->calls);
}

// Advances a call as far as is possible now. Returns 1 when the call is complete.
static int advance(shm_world *world, shm_call *c) {
  if (c->mode == SHM_UNMATCHED && !ad_shm_match(world, c)) return 0;
  if (c->mode == SHM_ALONE) return ad_shm_work_alone(world, c);
  return c->mode == SHM_CHUNKS ? ad_shm_work_chunks(world, c) : ad_shm_work_rounds(world, c);
}

void ad_shm_progress(shm_world *world) {
  ad_shm_progress_transfers(world);
  for (shm_call **link = &world->first; *link;) {
    shm_call *c = *link;
    if (!advance(world, c)) {
      link = &c->next;
      continue;
    }
    c->call->backend = NULL;
    ad_shm_consume(c);
    take_out(world, link);
    return_call(world, c);
    ad_shm_wake(world, c->channel);
  }
}

// Condition for ad_shm_wait: returns 1 if the call is complete. If it is not, first advances this rank's calls.
static int call_done(shm_world *world, void *subject) {
  ad_call *call = subject;
  if (call->backend) ad_shm_progress(world);
  return ad_op_is_transfer(call->op) ? ad_shm_transfer_done(world, call) : !call->backend;
}

// Condition for ad_shm_wait: returns 1 if the channel has a free slot for this rank's next call. If it has none, first
// advances this rank's calls.
static int ring_free(shm_world *world, void *subject) {
  if (ad_shm_ring_free(subject)) return 1;
  ad_shm_progress(world);
  return ad_shm_ring_free(subject);
}

// Waits until all members have consumed the oldest call in the channel's ring of slots, because some member is SHM_RING
// calls behind this rank.
static ad_status wait_for_ring(shm_world *world, shm_channel *channel, ad_call *call) {
  uint64_t oldest = channel->next_sequence - SHM_RING;
  shm_call behind = {.call = call, .channel = channel, .sequence = oldest, .mode = SHM_AHEAD};
  return ad_shm_wait(world, ring_free, channel, &behind);
}

static ad_status shm_health(void *backend_world) {
  const shm_world *world = backend_world;
  return ad_shm_failed(world) ? ad_shm_error(world->control) : AD_OK;
}

static ad_status shm_post(void *backend_world, ad_call *call) {
  shm_world *world = backend_world;
  shm_channel *channel;
  AD_TRY(shm_health(world));
  if (ad_op_is_transfer(call->op)) return ad_shm_post_transfer(world, call);
  AD_TRY(ad_shm_channel(world, call, &channel));
  if (!ad_shm_ring_free(channel)) AD_TRY(wait_for_ring(world, channel, call));
  shm_call *c = &world->calls[__builtin_ctzll(world->free_calls)];
  *c = (shm_call){.call = call, .channel = channel, .sequence = channel->next_sequence};
  AD_TRY(ad_shm_publish(world, c));
  channel->next_sequence++;
  world->free_calls &= ~(1ull << (c - world->calls));
  call->backend = c;
  append(world, c);
  return AD_OK;
}

static ad_status shm_test(void *backend_world, ad_call *call, int *done) {
  shm_world *world = backend_world;
  *done = call_done(world, call);
  if (*done) return AD_OK;
  // A rank that calls test in a loop is waiting. If there are more ranks than cores (spins is 0), it yields, so that
  // the ranks for which it waits get the core.
  if (++world->vain_tests % VAIN_TESTS == 0 && !world->spins) {
    ad_slice_shorten();
    sched_yield();
  }
  ad_shm_look_in_test(world, call->backend);
  return shm_health(world);
}

static ad_status shm_wait(void *backend_world, ad_call *call) {
  return ad_shm_wait(backend_world, call_done, call, call->backend);
}

static void shm_release(void *world, const ad_group_shape *list) { ad_shm_release_list(world, list); }

static void shm_fail(void *backend_world, ad_status cause, const char *message) {
  const shm_world *world = backend_world;
  ad_shm_raise(world->control, world->rank, AD_PEER_FAILED, cause, message);
}

static void shm_missing(void *backend_world, ad_text *text) {
  const shm_world *world = backend_world;
  ad_watchdog_missing(world->control, world->rank, text);
}

static ad_status shm_alloc(void *world, size_t bytes, void **out) { return ad_shm_alloc(world, bytes, out); }
static void shm_free(void *world, void *memory) { ad_shm_free(world, memory); }

static void shm_close(void *backend_world) {
  shm_world *world = backend_world;
  atomic_store_explicit(&world->records[world->rank].state, SHM_LEFT, memory_order_release);
  ad_shm_transfers_end(world);
  ad_shm_wake_all(world->control);
  ad_shm_channels_free(world);
  ad_shm_free_all(world);
  ad_shm_pull_end(world);
  ad_shm_map_end(world);
  ad_watchdog_close(world->dog);
  ad_shm_deaths_end(world);
  ad_shm_unmake(world->fd, world->control);
  ad_release(world);
}

// All ranks of the world map the same file, so the ranks of any group share memory.
static int shm_shares(void *world, const ad_group_shape *shape) { return 1; }

static ad_status shm_share(void *world, size_t bytes, uint32_t holders, ad_shared_token *token, void **out) {
  return ad_shm_share(world, bytes, holders, token, out);
}

static ad_status shm_attach(void *world, size_t bytes, const ad_shared_token *token, void **out) {
  return ad_shm_attach(world, bytes, token, out);
}

const ad_backend ad_backend_shm = {
    .name = "shm",
    .alloc = shm_alloc,
    .free = shm_free,
    .shares = shm_shares,
    .share = shm_share,
    .attach = shm_attach,
    .post = shm_post,
    .test = shm_test,
    .wait = shm_wait,
    .release = shm_release,
    .fail = shm_fail,
    .missing = shm_missing,
    .health = shm_health,
    .close = shm_close,
};
