/* Waiting in a world of several nodes: advances all calls during the wait and, if the wait is long, finds out whether
 * it can end. */
#include "comm/mpi/wait.h"

#include <sched.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "comm/mpi/transfer.h"
#include "comm/shm/wait.h"
#include "comm/slice.h"
#include "comm/watchdog.h"
#include "mesh/group.h"

static const uint32_t spins = 200, yields = 500;
// Nanoseconds. nap_longest: the longest sleep. look_interval: time between two searches for the reason why a wait does
// not end. data_patience: how long a wait continues for values after their sender has left. mail_patience: how long a
// wait continues, to receive mail, after the world has an error.
static const long nap_longest = 300000;
static const int64_t look_interval = 200000000, data_patience = 1000000000, mail_patience = 50000000;

static ad_reported_call own_call(const mpi_call *c) {
  return ad_mpi_reported_call(c->members[c->channel->index].reported);
}

/* ---- looking for ranks that left ---- */

// Sets the world's error if a member that the call still needs has left.
static void look_for_left(mpi_world *world, const mpi_call *c) {
  int64_t waited_for = ad_now() - world->waiting.since;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    uint32_t rank = (uint32_t)ad_shape_rank(&c->channel->shape, k);
    const mpi_member *member = &c->members[k];
    // The member may have completed the call before it left; then its values may still be in flight.
    int gave_up = world->left[rank] == 2 && waited_for > data_patience;
    if (!world->left[rank] || (member->reported && !gave_up)) continue;
    char words[AD_MESSAGE_MAX];
    ad_text text = ad_text_on(words, sizeof words);
    ad_reported_call call = own_call(c);
    ad_left_words(&text, rank, 0, world->rank, c->sequence, &call);
    ad_mpi_raise(world, AD_RANK_LEFT, words);
  }
}

/* ---- showing this rank's wait to other processes of the node ---- */

// Appends the members that have not announced the call, as "ranks 2,3", or "values of others" if all members have
// announced it.
static void add_missing(ad_text *text, const mpi_world *world, const mpi_waited *w) {
  char list[128] = "";
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t k = 0; k < w->members; k++)
    if (ad_mpi_is_missing(world, k)) ad_text_add(&ranks, "%s%d", count++ ? "," : "", (int)ad_shape_rank(w->shape, k));
  ad_text_add(text, count ? "rank%s %s" : "values of others%s%s", count > 1 ? "s" : "", list);
}

// Makes this rank's wait visible to the other processes of this node.
static void show_wait(mpi_world *world) {
  shm_record *record = &world->shm->records[world->rank];
  char words[SHM_WORDS] = "";
  ad_text text = ad_text_on(words, sizeof words);
  mpi_waited w = ad_mpi_waited_call(world);
  const mpi_call *c = world->waiting.call->backend;
  add_missing(&text, world, &w);
  ad_text_add(&text, " in ");
  ad_reported_call call = own_call(c);
  ad_call_words(&text, &call);
  if (strcmp(words, record->waits_words) != 0) memcpy(record->waits_words, words, sizeof words);
  atomic_store(&record->waits_peer, 0);
  atomic_store(&record->waits_channel, 0);
  atomic_fetch_or(&record->epoch, 1);
}

static void hide_wait(mpi_world *world) {
  _Atomic uint64_t *epoch = &world->shm->records[world->rank].epoch;
  if (atomic_load(epoch) & 1) atomic_fetch_add(epoch, 1);
}

/* ---- the loops that wait ---- */

// In a long wait, finds out at intervals why the wait does not end.
static void look_for_stalls(mpi_world *world) {
  mpi_waiting *waiting = &world->waiting;
  int64_t now = ad_now();
  if (!waiting->since) {
    waiting->since = now;
    waiting->next_look = now + look_interval;
  }
  if (now < waiting->next_look || !waiting->call->backend) return;
  waiting->next_look = now + look_interval;
  if (ad_mpi_is_mine(world, waiting->call)) {
    look_for_left(world, waiting->call->backend);
    show_wait(world);
    ad_watchdog_look(world->shm->dog);
  }
  ad_mpi_search(world);
}

static void nap(uint32_t turns) {
  long longest = 20000L << (turns / 64 < 4 ? turns / 64 : 4);
  struct timespec time = {.tv_nsec = longest < nap_longest ? longest : nap_longest};
  nanosleep(&time, NULL);
}

// Returns 1 if the wait must end because of an error. A wait continues for a moment after the error (`failed_at`),
// since mail that was sent before the error may still arrive and complete the call.
static int is_given_up(const mpi_world *world, int64_t *failed_at) {
  if (!ad_shm_failed(world->shm)) return 0;
  int64_t now = ad_now();
  if (!*failed_at) *failed_at = now;
  return now - *failed_at > mail_patience;
}

// Waits for a call of a group that spans nodes.
static void wait_spanning(mpi_world *world, const ad_call *call) {
  int64_t failed_at = 0;
  for (uint32_t turns = 0; call->backend && !is_given_up(world, &failed_at); turns++) {
    ad_mpi_progress(world);
    if (!call->backend || turns < spins) continue;
    if (turns < spins + yields) {
      ad_slice_shorten();
      sched_yield();
      continue;
    }
    look_for_stalls(world);
    nap(turns - spins - yields);
  }
  hide_wait(world);
}

typedef struct local_wait {
  mpi_world *world;
  ad_call *call;
  uint32_t turns;
} local_wait;

// Condition for ad_shm_wait: advances all calls, and returns 1 if the call that this rank waits for, of a group on this
// node, is complete.
static int local_done(shm_world *shm, void *subject) {
  local_wait *wait = subject;
  mpi_world *world = wait->world;
  ad_mpi_progress(world);
  if (!world->waiting.call->backend) return 1;
  if (++wait->turns > spins + yields) look_for_stalls(world);
  return 0;
}

// Condition for ad_shm_wait: advances all calls, and returns 1 if the transfer that this rank waits for is complete.
static int transfer_done(shm_world *shm, void *subject) {
  local_wait *wait = subject;
  mpi_world *world = wait->world;
  ad_mpi_progress(world);
  if (ad_mpi_transfer_done(world, wait->call)) return 1;
  if (++wait->turns > spins + yields) look_for_stalls(world);
  return 0;
}

ad_status ad_mpi_wait(mpi_world *world, ad_call *call) {
  ad_status status = AD_OK;
  local_wait wait = {world, call, 0};
  world->waiting = (mpi_waiting){.serial = ++world->waits, .call = call, .first_search = world->searches + 1};
  if (!call->backend || ad_mpi_is_mine(world, call))
    wait_spanning(world, call);
  else if (ad_op_is_transfer(call->op))
    status = ad_shm_wait(world->shm, transfer_done, &wait, call->backend);
  else
    status = ad_shm_wait(world->shm, local_done, &wait, call->backend);
  world->waiting.call = NULL;
  if (!status && call->backend) status = ad_shm_error(world->shm->control);
  return status;
}
