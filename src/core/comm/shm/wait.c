/* Waiting: spins, yields, sleeps; and when a wait is long, finds out whether it can end at all: whether a rank that is
 * needed has left, or ranks wait for each other in a circle. Deaths are seen by the launcher, which raises them itself.
 */
#include "comm/shm/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/text.h"
#include "comm/shm/channel.h"
#include "comm/shm/deaths.h"
#include "comm/shm/error.h"
#include "comm/watchdog.h"
#include "comm/words.h"
#include "mesh/group.h"

/* More yields bring nothing on idle cores, and beside other programs each is a turn that a rank with work does not get
 * (docs/performance.md, "Waiting"). */
static const uint32_t yields = 200;
static const int64_t sleep_first = 1000000, check_interval = 100000000;  // nanoseconds

/* ---- why does it not end? ---- */

// The call that a rank waits for in a long wait, as other ranks see it.
typedef struct long_wait {
  uint64_t epoch;
  const shm_entry *group;
  const shm_slot *slots;
  uint64_t sequence;
} long_wait;

// 0 if the rank is in no long wait, or its wait changes while this looks.
static int look_at(const shm_world *world, uint32_t rank, long_wait *out) {
  const shm_record *record = &world->records[rank];
  out->epoch = atomic_load(&record->epoch);
  if (!(out->epoch & 1)) return 0;
  out->group = ad_shm_entry(world->control, atomic_load(&record->waits_channel));
  out->sequence = atomic_load(&record->waits_sequence);
  if (!out->group || atomic_load(&record->epoch) != out->epoch) return 0;
  const shm_consumed *consumed = ad_shm_at(world, out->group->channel);
  out->slots = (const shm_slot *)(consumed + out->group->members);
  return 1;
}

static const shm_slot *slot_in(const long_wait *wait, uint32_t member) {
  return &wait->slots[(size_t)member * SHM_RING + wait->sequence % SHM_RING];
}

// The member has not made the call that is waited for.
static int is_missing(const long_wait *wait, uint32_t member) {
  return atomic_load(&slot_in(wait, member)->published) < wait->sequence + 1;
}

typedef struct circle {
  uint32_t ranks[SHM_RANKS_MAX], count;
  long_wait waits[SHM_RANKS_MAX];  // of ranks[i], which waits for ranks[i + 1]
  uint8_t visited[SHM_RANKS_MAX];
} circle;

// Follows waits from `rank` to the ranks it waits for, and so on, until one waits for this rank: 1, and the circle is
// in *found. 0: no way leads back.
static int follow(const shm_world *world, circle *found, uint32_t rank) {
  long_wait *wait = &found->waits[found->count];
  if (found->visited[rank] || !look_at(world, rank, wait)) return 0;
  found->visited[rank] = 1;
  found->ranks[found->count++] = rank;
  for (uint32_t i = 0; i < wait->group->members; i++) {
    uint32_t peer = (uint32_t)ad_shape_rank(&wait->group->shape, i);
    if (peer == rank || !is_missing(wait, i)) continue;
    if (peer == world->rank || follow(world, found, peer)) return 1;
  }
  found->count--;
  return 0;
}

// 1 if all ranks of the circle are still in the wait in which they were found. None of them has then published anything
// meanwhile, so that every member that was missing still is.
static int still_waiting(const shm_world *world, const circle *found) {
  for (uint32_t i = 0; i < found->count; i++)
    if (atomic_load(&world->records[found->ranks[i]].epoch) != found->waits[i].epoch) return 0;
  return 1;
}

static void add_wait(ad_text *text, const circle *found, uint32_t i) {
  const long_wait *wait = &found->waits[i];
  const ad_group_shape *shape = &wait->group->shape;
  uint32_t rank = found->ranks[i], member = 0;
  while (ad_shape_rank(shape, member) != rank) member++;
  ad_told_call call = ad_shm_told_call(slot_in(wait, member), shape);
  ad_text_add(text, "%s", i ? "; " : "");
  ad_wait_words(text, rank, found->ranks[(i + 1) % found->count], wait->sequence, &call);
}

static void look_for_circle(shm_world *world) {
  circle found = {.count = 0};
  if (!follow(world, &found, world->rank) || !still_waiting(world, &found)) return;
  char waits[AD_MESSAGE_MAX], words[AD_MESSAGE_MAX];
  ad_text of_waits = ad_text_on(waits, sizeof waits), text = ad_text_on(words, sizeof words);
  for (uint32_t i = 0; i < found.count; i++) add_wait(&of_waits, &found, i);
  ad_circle_words(&text, waits);
  if (still_waiting(world, &found)) ad_shm_raise(world->control, world->rank, AD_CYCLE, AD_CYCLE, words);
}

static int has_left(const shm_world *world, uint32_t rank) {
  return atomic_load_explicit(&world->records[rank].state, memory_order_acquire) == SHM_LEFT;
}

void ad_shm_raise_left(shm_world *world, const shm_call *c, uint32_t rank) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_told_call call = ad_shm_told_call(ad_shm_slot(c, c->channel->index), &c->channel->shape);
  ad_left_words(&text, rank, world->records[rank].exit_status, world->rank, c->sequence, &call);
  ad_shm_raise(world->control, world->rank, AD_RANK_LEFT, AD_RANK_LEFT, words);
}

static void look_for_left(shm_world *world, const shm_call *c) {
  for (int64_t member = -1; (member = ad_shm_lacking(c, (uint32_t)(member + 1))) >= 0;) {
    uint32_t rank = (uint32_t)ad_shape_rank(&c->channel->shape, member);
    // Looks again whether it lacks anything: it may have done its part just before it left.
    if (!has_left(world, rank) || ad_shm_lacking(c, (uint32_t)member) != member) continue;
    ad_shm_raise_left(world, c, rank);
  }
}

// A rank that left while this one waits for all ranks to join.
static void look_for_absent(shm_world *world) {
  for (uint32_t rank = 0; rank < world->ranks; rank++) {
    // Looks again whether all have joined: it may have left after that.
    if (!has_left(world, rank) || atomic_load(&world->control->tried) == world->control->joining) continue;
    char words[AD_MESSAGE_MAX];
    ad_text text = ad_text_on(words, sizeof words);
    ad_leaving_words(&text, rank, world->records[rank].exit_status);
    ad_text_add(&text, " before all ranks had joined it with ad_comm_open");
    ad_shm_raise(world->control, world->rank, AD_RANK_LEFT, AD_RANK_LEFT, words);
  }
}

static void diagnose(shm_world *world, const shm_call *blocking) {
  if (world->dog) ad_watchdog_look(world->dog);
  if (world->processes) ad_shm_look_for_dead(world);
  if (!blocking) {
    look_for_absent(world);
    return;
  }
  look_for_left(world, blocking);
  if (blocking->mode == SHM_UNMATCHED) look_for_circle(world);
}

/* ---- waiting ---- */

typedef struct waiting {
  uint32_t turns;
  int64_t sleep, next_check;  // nanoseconds
  int is_long;
} waiting;

// Begins a long wait: this rank sleeps from now on, and others can see which call it waits for.
static void enter_long(shm_world *world, waiting *w, const shm_call *blocking) {
  shm_record *record = &world->records[world->rank];
  w->is_long = 1;
  w->sleep = sleep_first < world->sleep_longest ? sleep_first : world->sleep_longest;
  w->next_check = ad_now() + check_interval;
  if (!blocking) return;
  atomic_store(&record->waits_channel, (uint64_t)((char *)blocking->channel->consumed - world->base));
  atomic_store(&record->waits_sequence, blocking->sequence);
  atomic_fetch_or(&record->epoch, 1);
}

static void leave_long(shm_world *world, const waiting *w) {
  _Atomic uint64_t *epoch = &world->records[world->rank].epoch;
  if (w->is_long && atomic_load(epoch) & 1) atomic_fetch_add(epoch, 1);
}

static void sleep_once(shm_world *world, waiting *w, int (*ready)(shm_world *, void *), void *subject) {
  shm_record *record = &world->records[world->rank];
  uint32_t before = atomic_load(&record->wake);
  struct timespec time = {.tv_nsec = (long)w->sleep};
  atomic_fetch_add(&world->control->sleepers, 1);
  if (!ready(world, subject) && !ad_shm_failed(world))
    syscall(SYS_futex, &record->wake, FUTEX_WAIT, before, &time, NULL, 0);
  atomic_fetch_sub(&world->control->sleepers, 1);
  w->sleep = 2 * w->sleep < world->sleep_longest ? 2 * w->sleep : world->sleep_longest;
}

static void pause_once(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  atomic_signal_fence(memory_order_seq_cst);
#endif
}

static void pass_time(shm_world *world, waiting *w, int (*ready)(shm_world *, void *), void *subject,
                      const shm_call *blocking) {
  uint32_t turn = w->turns++;
  if (turn < world->spins) {
    pause_once();
  } else if (turn < world->spins + yields) {
    sched_yield();
  } else {
    if (!w->is_long) enter_long(world, w, blocking);
    sleep_once(world, w, ready, subject);
    int64_t now = ad_now();
    if (now < w->next_check) return;
    w->next_check = now + check_interval;
    diagnose(world, blocking);
  }
}

ad_status ad_shm_wait(shm_world *world, int (*ready)(shm_world *world, void *subject), void *subject,
                      const shm_call *blocking) {
  waiting w = {0};
  int is_ready;
  while (!(is_ready = ready(world, subject)) && !ad_shm_failed(world)) pass_time(world, &w, ready, subject, blocking);
  leave_long(world, &w);
  return is_ready ? AD_OK : ad_shm_error(world->control);
}
