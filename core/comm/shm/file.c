/* The memory file of a world: its layout, making it, and mapping a file that another process made. */
#include "comm/shm/file.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/environment.h"
#include "base/memory.h"
#include "base/random.h"
#include "comm/shm/envelope.h"
#include "comm/shm/slot.h"

#ifndef AD_SHM_VERSION
#define AD_SHM_VERSION AD_VERSION
#endif
static const uint64_t page = 4096, huge_page = 2u << 20;
static const uint64_t mapping_max = 1ull << 44;  // bytes; a process can address 2^47

static uint64_t round_up(uint64_t n, uint64_t unit) { return (n + unit - 1) / unit * unit; }

static uint64_t machine_memory(void) { return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE); }

// Returns a number that differs between versions of addend and between layouts of the file.
static uint64_t magic(void) {
  uint64_t layout =
      (sizeof(shm_control) << 40) + (sizeof(shm_slot) << 20) + sizeof(shm_record) + SHM_RING + sizeof(shm_queue);
  return ad_random_bits(ad_random_stream("addend " AD_SHM_VERSION), layout, 0);
}

// Computes the layout of the file in `plan`, which must be zero. `plan` is on the heap, since its tables are too large
// for the stack.
static void plan_file(uint32_t ranks, size_t region_bytes, shm_control *plan) {
  plan->magic = magic();
  plan->ranks = plan->joining = ranks;
  plan->launcher = (uint64_t)getpid();
  plan->records_start = round_up(sizeof(shm_control), page);
  plan->queues_start = round_up(plan->records_start + ranks * sizeof(shm_record), page);
  plan->channels_start = round_up(plan->queues_start + ranks * sizeof(shm_queue), page);
  // A sparse file: only pages that are touched take memory.
  uint64_t given = ad_environment_number("ADDEND_ADDRESSES", 0) << 30, channels = 64ull << 30;
  plan->channels_bytes = given && given / 4 < channels ? given / 4 : channels;
  plan->regions_start = round_up(plan->channels_start + plan->channels_bytes, huge_page);
  uint64_t most = (given ? given - plan->channels_bytes : mapping_max) / ranks / huge_page * huge_page;
  if (!most) most = huge_page;
  uint64_t wanted = round_up(region_bytes ? region_bytes : machine_memory(), huge_page);
  plan->region_bytes = wanted < most ? wanted : most;
  plan->file_bytes = plan->regions_start + ranks * plan->region_bytes;
}

static ad_status map_file(int fd, uint64_t bytes, shm_control **out) {
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (base == MAP_FAILED)
    return ad_fail(errno == ENOMEM ? AD_MEMORY : AD_SYSTEM,
                   "%" PRIu64
                   " GiB of address space could not be mapped for the ranks' shared memory (%s); raise ulimit -v, or "
                   "set ADDEND_ADDRESSES=1 to need only 1 GiB",
                   bytes >> 30, strerror(errno));
  *out = base;
  return AD_OK;
}

static ad_status make_file(uint64_t bytes, int inherited, int *out) {
  int fd = memfd_create("addend", inherited ? 0 : MFD_CLOEXEC);
  if (fd < 0)
    return ad_fail(
        AD_SYSTEM,
        "the file of the ranks' shared memory could not be made (%s); if too many files are open, raise ulimit -n",
        strerror(errno));
  if (ftruncate(fd, (off_t)bytes)) {
    ad_status status = ad_fail(
        AD_SYSTEM, "the file of the ranks' shared memory could not grow to %" PRIu64 " GiB (%s); raise ulimit -f",
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
  plan_file(ranks, region_bytes, plan);
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

// Reads the head of a file and checks that this version of addend made the file.
static ad_status read_head(int fd, shm_control *head) {
  struct stat file;
  size_t bytes = offsetof(shm_control, failed);
  if (fstat(fd, &file) || pread(fd, head, bytes, 0) != (ssize_t)bytes || head->magic != magic() ||
      head->file_bytes != (uint64_t)file.st_size)
    return ad_fail(AD_INVALID,
                   "file descriptor %d is not the shared memory of a world of this version of addend (" AD_SHM_VERSION
                   "); if `addend run` or ad_launch made the descriptor, use the same version of addend for the "
                   "launcher and the program",
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
