/* Waiting in a world of several nodes: moves everything that can be moved, and when a wait is long, finds out whether
 * it can end. A circle of waits is found by a mail that follows the waits: a rank that waits for a call sends a search
 * to the ranks that have not made it; such a rank, if it waits too, sends the search on to those it waits for. If the
 * search comes back to the rank that began it, no rank of the circle can go on. */
#include <inttypes.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "comm/mpi.h"
#include "comm/watchdog.h"
#include "mesh/group.h"

static const uint32_t spins = 200, yields = 500;
// In nanoseconds: the longest nap; the time between two looks at why a wait does not end; how long values may be on
// their way after their sender has left; how long mail may be after the world has failed.
static const long nap_longest = 300000;
static const int64_t look_interval = 200000000, data_patience = 1000000000, mail_patience = 50000000;

/* ---- who is missing ---- */

// The group and number of the call that this rank waits in.
typedef struct waited {
  const ad_group_shape *shape;
  uint64_t sequence;
  uint32_t members;
} waited;

static waited waited_call(const mpi_world *world) {
  const ad_call *call = world->waiting.call;
  if (ad_mpi_is_mine(world, call)) {
    const mpi_call *c = call->engine;
    return (waited){&c->channel->shape, c->sequence, c->channel->members};
  }
  const shm_call *c = call->engine;
  return (waited){&c->channel->shape, c->sequence, c->channel->members};
}

static int is_missing(const mpi_world *world, uint32_t member) {
  const ad_call *call = world->waiting.call;
  if (ad_mpi_is_mine(world, call)) return !((const mpi_call *)call->engine)->members[member].told;
  const shm_call *c = call->engine;
  return c->mode == SHM_UNMATCHED && ad_shm_lacking(c, member) == member;
}

/* ---- circles ---- */

static void add_wait(ad_text *text, const mpi_world *world, const waited *w, uint32_t peer) {
  const ad_call *call = world->waiting.call;
  ad_signature signature = ad_signature_of(call);
  ad_text_add(text, "rank %u waits for rank %u in call %" PRIu64 " of its group: ", world->rank, peer, w->sequence + 1);
  ad_signature_print(text, &signature);
  ad_text_add(text, " over ");
  ad_group_words(text, call->axes, w->shape);
  ad_text_add(text, " at %s", call->site);
}

// Sends a search to all ranks that this one waits for. `words`: the waits so far.
static void send_search(mpi_world *world, uint32_t origin, uint64_t number, const char *words) {
  waited w = waited_call(world);
  for (uint32_t k = 0; k < w.members; k++) {
    uint32_t peer = (uint32_t)ad_shape_rank(w.shape, k);
    if (peer == world->rank || !is_missing(world, k)) continue;
    mail_search search = {.head = {MAIL_SEARCH, world->rank},
                          .origin = origin,
                          .number = number,
                          .shape = *w.shape,
                          .sequence = w.sequence};
    ad_text text = ad_text_on(search.text, sizeof search.text);
    ad_text_add(&text, "%s%s", words, *words ? "; " : "");
    add_wait(&text, world, &w, peer);
    ad_mpi_send_mail(world, peer, &search, sizeof search, NULL, 0, NULL, 0);
  }
}

static void raise_circle(mpi_world *world, const char *waits) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text,
              "ranks wait for each other in a circle: %s; all ranks must make these calls in one order, and name the "
              "same groups",
              waits);
  ad_mpi_raise(world, AD_CYCLE, words);
}

void ad_mpi_follow_search(mpi_world *world, const mail_search *search) {
  const mpi_waiting *waiting = &world->waiting;
  if (!waiting->call || !waiting->call->engine || ad_mpi_has_made(world, &search->shape, search->sequence)) return;
  if (search->origin == world->rank) {
    if (search->number >= waiting->first_search) raise_circle(world, search->text);
  } else if (world->followed[search->origin] < search->number) {
    world->followed[search->origin] = search->number;
    send_search(world, search->origin, search->number, search->text);
  }
}

/* ---- leavings ---- */

static void look_for_left(mpi_world *world, const mpi_call *c) {
  int64_t waited_for = ad_now() - world->waiting.since;
  for (uint32_t k = 0; k < c->channel->members; k++) {
    uint32_t rank = (uint32_t)ad_shape_rank(&c->channel->shape, k);
    const mpi_member *member = &c->members[k];
    // It may have completed the call before it left: its values may still be on their way.
    int gave_up = world->left[rank] == 2 && waited_for > data_patience;
    if (!world->left[rank] || (member->told && !gave_up)) continue;
    char words[AD_MESSAGE_MAX];
    ad_text text = ad_text_on(words, sizeof words);
    ad_text_add(&text, "rank %u left the world while rank %u waits for it in call %" PRIu64 " of its group: ", rank,
                world->rank, c->sequence + 1);
    ad_mpi_call_words(&text, c->members[c->channel->index].told);
    ad_mpi_raise(world, AD_RANK_LEFT, words);
  }
}

/* ---- what other processes of the node see ---- */

// Adds "ranks 2,3": members that have not told their call. Where all have, the values are on their way.
static void add_missing(ad_text *text, const mpi_world *world, const waited *w) {
  char list[128] = "";
  ad_text ranks = ad_text_on(list, sizeof list);
  int count = 0;
  for (uint32_t k = 0; k < w->members; k++)
    if (is_missing(world, k)) ad_text_add(&ranks, "%s%d", count++ ? "," : "", (int)ad_shape_rank(w->shape, k));
  ad_text_add(text, count ? "rank%s %s" : "values of others%s%s", count > 1 ? "s" : "", list);
}

static void show_wait(mpi_world *world) {
  shm_record *record = &world->shm->records[world->rank];
  char words[SHM_WORDS] = "";
  ad_text text = ad_text_on(words, sizeof words);
  waited w = waited_call(world);
  const mpi_call *c = world->waiting.call->engine;
  add_missing(&text, world, &w);
  ad_text_add(&text, " in ");
  ad_mpi_call_words(&text, c->members[c->channel->index].told);
  if (strcmp(words, record->waits_words) != 0) memcpy(record->waits_words, words, sizeof words);
  atomic_store(&record->waits_channel, 0);
  atomic_fetch_or(&record->epoch, 1);
}

static void hide_wait(mpi_world *world) {
  _Atomic uint64_t *epoch = &world->shm->records[world->rank].epoch;
  if (atomic_load(epoch) & 1) atomic_fetch_add(epoch, 1);
}

/* ---- waiting ---- */

static void look(mpi_world *world) {
  mpi_waiting *waiting = &world->waiting;
  int64_t now = ad_now();
  if (!waiting->since) {
    waiting->since = now;
    waiting->next_look = now + look_interval;
  }
  if (now < waiting->next_look || !waiting->call->engine) return;
  waiting->next_look = now + look_interval;
  if (ad_mpi_is_mine(world, waiting->call)) {
    look_for_left(world, waiting->call->engine);
    show_wait(world);
    ad_watchdog_look(world->shm->dog);
  }
  send_search(world, world->rank, ++world->searches, "");
}

static void nap(uint32_t turns) {
  long longest = 20000L << (turns / 64 < 4 ? turns / 64 : 4);
  struct timespec time = {.tv_nsec = longest < nap_longest ? longest : nap_longest};
  nanosleep(&time, NULL);
}

// After an error the wait goes on for a moment: mail that was sent before the error may still be on its way, and
// complete the call.
static int is_given_up(const mpi_world *world, int64_t *failed_at) {
  if (!ad_shm_failed(world->shm)) return 0;
  int64_t now = ad_now();
  if (!*failed_at) *failed_at = now;
  return now - *failed_at > mail_patience;
}

static void wait_spanning(mpi_world *world, const ad_call *call) {
  int64_t failed_at = 0;
  for (uint32_t turns = 0; call->engine && !is_given_up(world, &failed_at); turns++) {
    ad_mpi_progress(world);
    if (!call->engine || turns < spins) continue;
    if (turns < spins + yields) {
      sched_yield();
      continue;
    }
    look(world);
    nap(turns - spins - yields);
  }
  hide_wait(world);
}

typedef struct local_wait {
  mpi_world *world;
  uint32_t turns;
} local_wait;

static int local_done(shm_world *shm, void *subject) {
  local_wait *wait = subject;
  mpi_world *world = wait->world;
  ad_mpi_progress(world);
  if (!world->waiting.call->engine) return 1;
  if (++wait->turns > spins + yields) look(world);
  return 0;
}

ad_status ad_mpi_wait(mpi_world *world, ad_call *call) {
  ad_status status = AD_OK;
  local_wait wait = {world, 0};
  world->waiting = (mpi_waiting){.call = call, .first_search = world->searches + 1};
  if (!call->engine || ad_mpi_is_mine(world, call))
    wait_spanning(world, call);
  else
    status = ad_shm_wait(world->shm, local_done, &wait, call->engine);
  world->waiting.call = NULL;
  if (!status && call->engine) status = ad_shm_error(world->shm->control);
  return status;
}
