/* The memory file of a world: making, joining and leaving it, and its first error. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "base/environment.h"
#include "kernels/kernels.h"
#include "base/memory.h"
#include "base/trait.h"
#include "comm/settings.h"
#include "base/random.h"
#include "comm/foreign.h"
#include "comm/mpi.h"
#include "comm/watchdog.h"

#ifndef AD_SHM_VERSION
#define AD_SHM_VERSION AD_VERSION
#endif
static const uint64_t page = 4096, huge_page = 2u << 20;
static const uint64_t mapping_max = 1ull << 44;  // of 2^47 that a process has

static uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static uint64_t machine_memory(void) { return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE); }

// A number that differs between versions and between layouts of the file.
static uint64_t magic(void) {
  uint64_t layout = (sizeof(shm_control) << 40) + (sizeof(shm_slot) << 20) + sizeof(shm_record) + SHM_RING;
  return ad_random_bits(ad_random_stream("addend " AD_SHM_VERSION), layout, 0);
}

static shm_control plan_file(uint32_t ranks, size_t region_bytes) {
  shm_control plan = {.magic = magic(), .ranks = ranks, .joining = ranks, .launcher = (uint64_t)getpid()};
  plan.records_start = round_up(sizeof(shm_control), page);
  plan.channels_start = round_up(plan.records_start + ranks * sizeof(shm_record), page);
  uint64_t given = ad_environment_number("ADDEND_ADDRESSES", 0) << 30, channels = 64ull << 30;  // sparse
  plan.channels_bytes = given && given / 4 < channels ? given / 4 : channels;
  plan.regions_start = round_up(plan.channels_start + plan.channels_bytes, huge_page);
  uint64_t most = (given ? given - plan.channels_bytes : mapping_max) / ranks / huge_page * huge_page;
  if (!most) most = huge_page;
  uint64_t wanted = round_up(region_bytes ? region_bytes : machine_memory(), huge_page);
  plan.region_bytes = wanted < most ? wanted : most;
  plan.file_bytes = plan.regions_start + ranks * plan.region_bytes;
  return plan;
}

static ad_status map_file(int fd, uint64_t bytes, shm_control **out) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    return ad_fail(
        errno == ENOMEM ? AD_MEMORY : AD_SYSTEM,
        "%" PRIu64
        " GiB of address space could not be mapped for the ranks' shared memory: %s (see ulimit -v; ADDEND_ADDRESSES=1 "
        "takes 1)",
        bytes >> 30, strerror(errno));
  *out = base;
  return AD_OK;
}

static ad_status make_file(uint64_t bytes, int inherited, int *out) {
  int fd = memfd_create("addend", inherited ? 0 : MFD_CLOEXEC);
  if (fd < 0) return ad_fail(AD_SYSTEM, "the ranks' shared memory file could not be made: %s", strerror(errno));
  if (ftruncate(fd, (off_t)bytes)) {
    ad_status status =
        ad_fail(AD_SYSTEM, "the ranks' shared memory file could not grow to %" PRIu64 " GiB: %s (see ulimit -f)",
                bytes >> 30, strerror(errno));
    close(fd);
    return status;
  }
  *out = fd;
  return AD_OK;
}

ad_status ad_shm_make(uint32_t ranks, size_t region_bytes, int inherited, int *fd, shm_control **out) {
  shm_control *plan, *control = NULL;
  int file = -1;
  AD_TRY(ad_new(1, &plan));
  *plan = plan_file(ranks, region_bytes);
  ad_status status = make_file(plan->file_bytes, inherited, &file);
  if (!status && (status = map_file(file, plan->file_bytes, &control))) close(file);
  if (!status) {
    memcpy(control, plan, offsetof(shm_control, failed));
    *fd = file;
    *out = control;
  }
  ad_release(plan);
  return status;
}

void ad_shm_unmake(int fd, shm_control *control) {
  munmap(control, control->file_bytes);
  close(fd);
}

shm_record *ad_shm_records(shm_control *control) { return (shm_record *)((char *)control + control->records_start); }

/* ---- the first error ---- */

void ad_shm_raise(shm_control *control, uint32_t rank, ad_status status, ad_status cause, const char *text) {
  uint32_t none = 0;
  if (!atomic_compare_exchange_strong(&control->failed, &none, 1)) return;
  control->fail_status = status;
  control->fail_cause = cause;
  control->fail_rank = (int32_t)rank;
  snprintf(control->fail_text, sizeof control->fail_text, "%s", text);
  atomic_store(&control->failed, 2);
  ad_shm_wake_all(control);
}

// Waits for the words of an error that is being written, but not for ever: the writer may have died meanwhile.
ad_status ad_shm_error(const shm_control *control) {
  const struct timespec millisecond = {.tv_nsec = 1000000};
  for (int i = 0; i < 500 && atomic_load_explicit(&control->failed, memory_order_acquire) == 1; i++)
    nanosleep(&millisecond, NULL);
  if (atomic_load_explicit(&control->failed, memory_order_acquire) == 1)
    return ad_fail(AD_RANK_DIED, "a rank died while it reported an error");
  return ad_fail((ad_status)control->fail_status, "%s", control->fail_text);
}

/* ---- joining ---- */

static int all_joined(shm_world *world, void *subject) {
  return atomic_load_explicit(&world->control->joined, memory_order_acquire) == world->control->joining;
}

static int all_tried(shm_world *world, void *subject) {
  return atomic_load_explicit(&world->control->tried, memory_order_acquire) == world->control->joining;
}

// All ranks of a sum must use the same kernels, the widest that all have, and agree on their trait.
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

// Adds the cores that this rank may run on; ranks may be bound to one core each.
static void show_cores(const shm_world *world) {
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores)) return;
  for (int i = 0; i < SHM_CORES_MAX && i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &cores)) atomic_fetch_or(&world->control->cores[i / 64], 1ull << i % 64);
}

static void choose_patience(shm_world *world) {
  uint32_t count = 0;
  for (int i = 0; i < SHM_CORES_MAX / 64; i++)
    count += (uint32_t)__builtin_popcountll(atomic_load(&world->control->cores[i]));
  world->crowded = world->control->joining > count;
  world->spins = world->crowded ? 0 : 4000;
  world->patience = world->crowded ? 0 : 40;
}

static ad_status take_place(shm_world *world) {
  shm_record *record = &world->records[world->rank];
  uint32_t absent = SHM_ABSENT;
  record->variant = ad_kernels_best();
  record->trait = ad_trait_own();
  if (!atomic_compare_exchange_strong(&record->state, &absent, SHM_JOINED))
    return ad_fail(
        AD_INVALID,
        "rank %u of this world was joined before (by process %d): a program joins once, and what it starts runs "
        "without ADDEND_SHM_FD in its environment",
        world->rank, (int)atomic_load(&record->pid));
  atomic_store(&record->pid, getpid());
  ad_shm_pull_allow(world);
  show_cores(world);
  if (atomic_fetch_add(&world->control->joined, 1) + 1 == world->control->joining) ad_shm_wake_all(world->control);
  return AD_OK;
}

static ad_status join(shm_world *world) {
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

ad_status ad_shm_join(int fd, shm_control *control, uint32_t rank, shm_world **out) {
  shm_world *world;
  ad_status status = ad_new(1, &world);
  if (status) {
    ad_shm_unmake(fd, control);
    return status;
  }
  world->control = control;
  world->base = (char *)control;
  world->records = ad_shm_records(control);
  world->fd = fd;
  world->rank = rank;
  world->ranks = (uint32_t)control->ranks;
  world->free_calls = UINT64_MAX;
  world->last = &world->first;
  world->sleep_longest = 50000000;
  status = ad_shm_map_begin(world);
  if (!status && !control->launcher) status = ad_watchdog_open(control, rank, &world->dog);
  if (!status) status = join(world);
  if (status) {
    ad_watchdog_close(world->dog);
    ad_shm_map_end(world);
    ad_shm_unmake(fd, control);
    ad_release(world);
    return status;
  }
  agree_on_kernels(world);
  *out = world;
  return AD_OK;
}

/* ---- opening ---- */

static ad_status read_number(const char *name, int64_t *out) {
  const char *text = getenv(name);
  char *end;
  errno = 0;
  long long value = text ? strtoll(text, &end, 10) : 0;
  if (!text || end == text || *end || errno || value < 0)
    return ad_fail(AD_INVALID,
                   "%s is \"%s\" in the environment, it must be a number: start ranks with `addend run` or ad_launch",
                   name, text ? text : "");
  *out = value;
  return AD_OK;
}

static ad_status read_head(int fd, shm_control *head) {
  struct stat file;
  size_t bytes = offsetof(shm_control, failed);
  if (fstat(fd, &file) || pread(fd, head, bytes, 0) != (ssize_t)bytes || head->magic != magic() ||
      head->file_bytes != (uint64_t)file.st_size)
    return ad_fail(AD_INVALID,
                   "file descriptor %d is not the memory of a world of this version of addend (" AD_SHM_VERSION
                   "): if `addend run` or ad_launch made it, that is another version; use one",
                   fd);
  return AD_OK;
}

ad_status ad_shm_map(int fd, shm_control **out) {
  shm_control *head;
  AD_TRY(ad_new(1, &head));
  ad_status status = read_head(fd, head);
  if (!status) status = map_file(fd, head->file_bytes, out);
  ad_release(head);
  return status;
}

static ad_status map_inherited(int *fd, uint32_t *rank, shm_control **out) {
  int64_t inherited = -1, number = -1;
  shm_control *control = NULL;
  AD_TRY(read_number("ADDEND_SHM_FD", &inherited));
  AD_TRY(read_number("ADDEND_RANK", &number));
  ad_status status = ad_shm_map(inherited > INT32_MAX ? -1 : (int)inherited, &control);
  if (status) return ad_fail_in(status, "ADDEND_SHM_FD is %" PRId64 " (unset it to run alone)", inherited);
  if ((uint64_t)number >= control->ranks) {
    status = ad_fail(AD_INVALID, "ADDEND_RANK is %" PRId64 ", the world has %" PRIu64 " ranks", number, control->ranks);
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
  AD_TRY(ad_shm_join(fd, control, rank, &world));
  return ad_comm_create(&ad_engine_shm, world, rank, size, out);
}

static ad_status check_call(ad_comm **out) {
  if (!out) return ad_fail(AD_INVALID, "a communicator is opened, but `out` is NULL");
  return ad_settings_check();
}

ad_status ad_comm_open_alone(ad_comm **out) {
  int fd = -1;
  shm_control *control = NULL;
  AD_TRY(check_call(out));
  AD_TRY(ad_shm_make(1, 0, 0, &fd, &control));
  return open_world(fd, control, 0, out);
}

int ad_comm_launched(void) { return getenv("ADDEND_SHM_FD") || ad_mpi_launched(); }

ad_status ad_comm_open(ad_comm **out) {
  int fd = -1;
  uint32_t rank = 0;
  shm_control *control = NULL;
  AD_TRY(check_call(out));
  if (!ad_comm_launched()) AD_TRY(ad_foreign_check());
  if (!getenv("ADDEND_SHM_FD")) return ad_mpi_launched() ? ad_mpi_open(out) : ad_comm_open_alone(out);
  AD_TRY(map_inherited(&fd, &rank, &control));
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // between launcher and rank there may be a shell
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return open_world(fd, control, rank, out);
}
