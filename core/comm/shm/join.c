/* Joins a world and opens it as a comm. It is the world for which addend's launcher started this process, or a new
 * world of this process alone. */
#include "comm/shm/join.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/trait.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "comm/shm/deaths.h"
#include "comm/shm/backend.h"
#include "comm/shm/file.h"
#include "comm/shm/memory.h"
#include "comm/shm/pull.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"
#include "comm/watchdog.h"

static int all_joined(shm_world *world, void *subject) {
  return atomic_load_explicit(&world->control->joined, memory_order_acquire) == world->control->joining;
}

static int all_tried(shm_world *world, void *subject) {
  return atomic_load_explicit(&world->control->tried, memory_order_acquire) == world->control->joining;
}

// Chooses the kernels and the trait that every rank has, since all ranks must compute a sum in the same way.
static void agree_on_kernels(const shm_world *world) {
  uint32_t least = ad_kernels_best();
  uint32_t trait = ad_trait_own();
  for (uint32_t i = 0; i < world->ranks; i++) {
    const shm_record *record = &world->records[i];
    if (atomic_load(&record->state) == SHM_ABSENT) continue;
    if (record->variant < least) least = record->variant;
    trait = ad_trait_common(trait, record->trait);
  }
  ad_kernels_choose((ad_variant)least);
  ad_trait_choose(trait);
}

// Adds the cores on which this rank may run to the world's set of cores. All ranks add their cores, since each rank may
// be bound to another core.
static void show_cores(const shm_world *world) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores)) return;
  for (int i = 0; i < SHM_CORES_MAX && i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &cores)) atomic_fetch_or(&world->control->cores[i / 64], 1ull << i % 64);
}

// Sets how long this rank spins in waits, and how patient it is with other members: both are 0 unless there are at
// least as many cores as ranks.
static void choose_patience(shm_world *world) {
  uint32_t count = 0;
  for (int i = 0; i < SHM_CORES_MAX / 64; i++)
    count += (uint32_t)__builtin_popcountll(atomic_load(&world->control->cores[i]));
  world->crowded = world->control->joining > count;
  world->spins = world->crowded ? 0 : 4000;
  world->patience = world->crowded ? 0 : 40;
}

// Registers this process in the rank's record; fails if another process is registered there.
static ad_status take_place(shm_world *world) {
  shm_record *record = &world->records[world->rank];
  uint32_t absent = SHM_ABSENT;
  record->variant = ad_kernels_best();
  record->trait = ad_trait_own();
  if (!atomic_compare_exchange_strong(&record->state, &absent, SHM_JOINED))
    return ad_fail(AD_INVALID,
                   "rank %u of this world has already joined, as process %d; join only once in a program, and start "
                   "other programs without ADDEND_SHM_FD in their environment",
                   world->rank, (int)atomic_load(&record->pid));
  atomic_store(&record->pid, getpid());
  ad_shm_pull_allow(world);
  show_cores(world);
  if (atomic_fetch_add(&world->control->joined, 1) + 1 == world->control->joining) ad_shm_wake_all(world->control);
  return AD_OK;
}

// Joins, then waits until all ranks have joined and have tried to read each other's memory.
static ad_status join_world(shm_world *world) {
  AD_TRY(take_place(world));
  ad_status status = ad_shm_wait(world, all_joined, NULL, NULL);
  if (!status) {
    ad_shm_pull_try(world);
    status = ad_shm_wait(world, all_tried, NULL, NULL);
  }
  if (status) {
    atomic_store(&world->records[world->rank].state, SHM_LEFT);
    ad_shm_pull_end(world);
    return status;
  }
  ad_shm_pull_decide(world);
  choose_patience(world);
  return AD_OK;
}

/* Sets the fields of *world that are known before this rank has joined. */
static void describe_world(int fd, shm_control *control, uint32_t rank, shm_world *world) {
  world->control = control;
  world->base = (char *)control;
  world->records = ad_shm_records(control);
  world->fd = fd;
  world->rank = rank;
  world->ranks = (uint32_t)control->ranks;
  world->free_calls = UINT64_MAX;
  world->last = &world->first;
  world->sleep_longest = 50000000;
}

/* Prepares this rank's data structures for its world, joins the world, and waits for the other ranks. `pids` is that
 * of ad_shm_join. */
static ad_status begin_world(shm_world *world, const int32_t *pids) {
  AD_TRY(ad_shm_map_begin(world));
  AD_TRY(ad_shm_transfers_begin(world));
  if (!world->control->launcher) AD_TRY(ad_watchdog_open(world->control, world->rank, &world->dog));
  if (pids) AD_TRY(ad_shm_deaths_begin(world, pids));
  AD_TRY(join_world(world));
  agree_on_kernels(world);
  return AD_OK;
}

/* Undoes begin_world, which may have failed half way. */
static void end_world(shm_world *world) {
  ad_shm_deaths_end(world);
  ad_watchdog_close(world->dog);
  ad_shm_transfers_end(world);
  ad_shm_map_end(world);
  ad_release(world);
}

ad_status ad_shm_join(int fd, shm_control *control, uint32_t rank, const int32_t *pids, shm_world **out) {
  shm_world *world;
  ad_status status = ad_new(1, &world);
  if (status) {
    ad_shm_unmake(fd, control);
    return status;
  }
  describe_world(fd, control, rank, world);
  status = begin_world(world, pids);
  if (status) {
    end_world(world);
    ad_shm_unmake(fd, control);
    return status;
  }
  *out = world;
  return AD_OK;
}

/* ---- opening a world ---- */

static ad_status read_number(const char *name, int64_t *out) {
  const char *text = getenv(name);
  char *end;
  errno = 0;
  long long value = text ? strtoll(text, &end, 10) : 0;
  if (!text || end == text || *end || errno || value < 0)
    return ad_fail(AD_INVALID,
                   "%s in the environment is \"%s\", but must be a number; start ranks with `addend run` or ad_launch",
                   name, text ? text : "");
  *out = value;
  return AD_OK;
}

// Maps the shared memory file that the launcher left open for this process.
static ad_status map_inherited(int *fd, uint32_t *rank, shm_control **out) {
  int64_t inherited = -1, number = -1;
  shm_control *control = NULL;
  AD_TRY(read_number("ADDEND_SHM_FD", &inherited));
  AD_TRY(read_number("ADDEND_RANK", &number));
  ad_status status = ad_shm_map(inherited > INT32_MAX ? -1 : (int)inherited, &control);
  if (status)
    return ad_fail_in(status,
                      "ADDEND_SHM_FD in the environment is %" PRId64
                      ", with which this rank cannot join the world (unset ADDEND_SHM_FD to run this rank alone)",
                      inherited);
  if ((uint64_t)number >= control->ranks) {
    status = ad_fail(AD_INVALID,
                     "ADDEND_RANK in the environment is %" PRId64 ", but the world has only %" PRIu64
                     " rank%s; start ranks with `addend run` or ad_launch",
                     number, control->ranks, ad_plural((long long)control->ranks));
    munmap(control, control->file_bytes);
    return status;
  }
  *fd = (int)inherited;
  *rank = (uint32_t)number;
  *out = control;
  return AD_OK;
}

static ad_status open_world(int fd, shm_control *control, uint32_t rank, ad_comm **out) {
  shm_world *world;
  int64_t size = (int64_t)control->ranks;
  AD_TRY(ad_shm_join(fd, control, rank, NULL, &world));
  return ad_comm_create(&ad_backend_shm, world, rank, size, out);
}

ad_status ad_shm_open_alone(ad_comm **out) {
  int fd = -1;
  shm_control *control = NULL;
  AD_TRY(ad_shm_make(1, 0, 0, &fd, &control));
  return open_world(fd, control, 0, out);
}

int ad_shm_launched(void) { return getenv("ADDEND_SHM_FD") != NULL; }

ad_status ad_shm_open(ad_comm **out) {
  int fd = -1;
  uint32_t rank = 0;
  shm_control *control = NULL;
  AD_TRY(map_inherited(&fd, &rank, &control));
  // Kills this process if its parent ends, also if the parent is a shell between launcher and rank. The rank's children
  // do not inherit this.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return open_world(fd, control, rank, out);
}
