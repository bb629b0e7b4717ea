/* Waits: spins, yields, sleeps. If a wait is long, finds out whether it can end: whether a rank that it needs has left,
 * or ranks wait for each other in a circle. Deaths of ranks are found by the launcher, which makes them the world's
 * error. */
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
#include "comm/shm/transfer.h"
#include "comm/slice.h"
#include "comm/watchdog.h"
#include "comm/words.h"
#include "mesh/group.h"

/* The number of yields before the first sleep. More yields do not help on idle cores; when other programs run, each
 * yield takes a time slice from a rank with work (lab/measured/processor-not-noted.md, "Waiting"). */
static const uint32_t yields = 200;
static const int64_t sleep_first = 1000000, check_interval = 100000000;  // nanoseconds

/* ---- finding out why a long wait does not end ---- */

// Sets the world's error if a member that the call still needs has left.
static void look_for_left(shm_world *world, const shm_call *c) {
  for (int64_t member = -1; (member = ad_shm_missing(c, (uint32_t)(member + 1))) >= 0;) {
    uint32_t rank = (uint32_t)ad_shape_rank(&c->channel->shape, member);
    // Checks once more whether the member is missing in the call, since it may have done its part just before it left.
    if (!ad_shm_has_left(world, rank) || ad_shm_missing(c, (uint32_t)member) != member) continue;
    ad_shm_raise_left(world, c, rank);
  }
}

// Sets the world's error if a rank has left while this rank waits for all ranks to join.
static void look_for_absent(shm_world *world) {
  for (uint32_t rank = 0; rank < world->ranks; rank++) {
    // Checks once more whether all ranks have joined: then the rank left after joining, which is no error here.
    if (!ad_shm_has_left(world, rank) || atomic_load(&world->control->tried) == world->control->joining) continue;
    char words[AD_MESSAGE_MAX];
    ad_text text = ad_text_on(words, sizeof words);
    ad_leaving_words(&text, rank, world->records[rank].exit_status);
    ad_text_add(&text, " before all ranks had joined it with ad_comm_open");
    ad_shm_raise(world->control, world->rank, AD_RANK_LEFT, AD_RANK_LEFT, words);
  }
}

// Looks for ranks that left although the call needs them and, if no launcher watches for deaths, for ranks that died.
static void look_for_gone(shm_world *world, const shm_call *blocking) {
  if (world->processes) ad_shm_look_for_dead(world);
  if (!blocking)
    look_for_absent(world);
  else if (blocking->mode == SHM_TRANSFER)
    ad_shm_look_for_left_peer(world, blocking);
  else
    look_for_left(world, blocking);
}

void ad_shm_look_in_test(shm_world *world, const shm_call *tested) {
  int64_t now = ad_now();
  if (now < world->next_look) return;
  world->next_look = now + check_interval;
  look_for_gone(world, tested);
}

// Searches for the reason why a wait does not end: a rank that left or died, or a circle of waits.
static void diagnose(shm_world *world, const shm_call *blocking) {
  if (world->dog) ad_watchdog_look(world->dog);
  look_for_gone(world, blocking);
  if (!blocking) return;
  if (blocking->mode == SHM_UNMATCHED || blocking->mode == SHM_TRANSFER) ad_shm_look_for_circle(world);
}

/* ---- the loop that waits ---- */

typedef struct waiting {
  uint32_t turns;
  int64_t sleep, next_check;  // nanoseconds
  int is_long;
} waiting;

// Makes this rank's wait visible to the other ranks.
static void show(shm_world *world, const shm_call *blocking) {
  shm_record *record = &world->records[world->rank];
  if (atomic_load_explicit(&record->epoch, memory_order_relaxed) & 1) return;
  if (blocking->mode == SHM_TRANSFER) {
    ad_shm_show_transfer(world, blocking);
  } else {
    atomic_store(&record->waits_peer, 0);
    atomic_store(&record->waits_channel, (uint64_t)((char *)blocking->channel->consumed - world->base));
    atomic_store(&record->waits_sequence, blocking->sequence);
  }
  atomic_fetch_or(&record->epoch, 1);
}

// Begins a long wait: from now on this rank sleeps, and other ranks see for which call it waits.
static void enter_long(shm_world *world, waiting *w, const shm_call *blocking) {
  w->is_long = 1;
  w->sleep = sleep_first < world->sleep_longest ? sleep_first : world->sleep_longest;
  w->next_check = ad_now() + check_interval;
  if (blocking) show(world, blocking);
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

// One iteration of a wait. The first iterations spin, later ones yield, and still later ones sleep and, at intervals,
// find out why the wait does not end.
static void pass_time(shm_world *world, waiting *w, int (*ready)(shm_world *, void *), void *subject,
                      const shm_call *blocking) {
  uint32_t turn = w->turns++;
  if (turn < world->spins) {
    pause_once();
  } else if (turn < world->spins + yields) {
    ad_slice_shorten();
    sched_yield();
  } else {
    if (!w->is_long)
      enter_long(world, w, blocking);
    else if (blocking)
      show(world, blocking);  // ad_shm_pause_long may have hidden the wait
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
