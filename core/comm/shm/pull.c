/* Reads ("pulls") bytes from the memory of a peer's process: one copy, no rounds. When the ranks of a node join,
 * they find out whether they can do this. Other files decide which bytes a call needs. */
#include "comm/shm/pull.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/environment.h"
#include "base/text.h"
#include "comm/shm/error.h"
#include "comm/shm/transfer.h"
#include "comm/shm/wait.h"
#include "comm/words.h"

// Bytes read with one system call. The kernel first pins all pages of a read, then copies, so long reads are slower:
// reading 4 MiB in one call took a fifth longer per byte.
static const size_t slice = 1u << 20;
// Nanoseconds that this rank waits for the launcher to report a death before it reports the death itself.
static const int64_t patience = 1000000000;

static int staging_is_wanted(void) { return ad_environment_number("ADDEND_STAGING", 0) != 0; }

/* ---- whether ranks may read each other's memory ---- */

// Permits process `reader` and its descendants to read this rank's memory; 0 ends the permission. Needed only if the
// Yama security module restricts reading. `reader` is an ancestor of all ranks: their launcher, or an MPI launcher's
// daemon. Ranks without a common ancestor use staging. PR_SET_PTRACER_ANY is not used, since it would open the rank to
// every process of the user.
static void name_reader(const shm_world *world, pid_t reader) {
#ifdef PR_SET_PTRACER
  if (world->control->joining > 1 && world->probe) prctl(PR_SET_PTRACER, (unsigned long)reader, 0ul, 0ul, 0ul);
#endif
}

void ad_shm_pull_allow(shm_world *world) {
  shm_record *record = &world->records[world->rank];
  if (staging_is_wanted()) return;
  // In another namespace a peer's pid may belong to a foreign process. The word depends on time and rank, so that a
  // foreign process is unlikely to have the same word at this address.
  world->probe = (uint64_t)ad_now() << 16 | (world->rank + 1);
  record->probe_at = (uint64_t)(uintptr_t)&world->probe;
  record->probe_holds = world->probe;
  name_reader(world, world->control->launcher ? (pid_t)world->control->launcher : getppid());
}

void ad_shm_pull_end(const shm_world *world) { name_reader(world, 0); }

static ssize_t read_process(const shm_record *record, uint64_t from, void *to, size_t bytes) {
  struct iovec local = {to, bytes}, remote = {(void *)(uintptr_t)from, bytes};  // NOLINT(performance-no-int-to-ptr)
  return process_vm_readv(atomic_load(&record->pid), &local, 1, &remote, 1, 0);
}

static int can_read(const shm_record *record) {
  uint64_t word = 0;
  return record->probe_at && read_process(record, record->probe_at, &word, sizeof word) == sizeof word &&
         word == record->probe_holds;
}

void ad_shm_pull_try(shm_world *world) {
  for (uint32_t rank = 0; rank < world->ranks; rank++) {
    const shm_record *record = &world->records[rank];
    if (rank != world->rank && atomic_load(&record->state) == SHM_JOINED && !can_read(record))
      atomic_store(&world->control->unreadable, 1);
  }
  if (atomic_fetch_add(&world->control->tried, 1) + 1 == world->control->joining) ad_shm_wake_all(world->control);
}

void ad_shm_pull_decide(shm_world *world) {
  world->pulls = !atomic_load(&world->control->unreadable);
  if (!world->pulls) name_reader(world, 0);
}

/* ---- reading a peer's memory ---- */

static void add_call(ad_text *text, const shm_call *c) {
  ad_signature signature;
  ad_reported_call call = c->mode == SHM_TRANSFER
                              ? ad_shm_reported_transfer((const shm_transfer *)c, &signature)
                              : ad_shm_reported_call(ad_shm_slot(c, c->channel->index), &c->channel->shape);
  ad_call_words(text, &call);
}

static void raise_death(shm_world *world, const shm_call *c, uint32_t rank) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "rank %u died: its process %d is gone while rank %u reads its memory in ", rank,
              (int)atomic_load(&world->records[rank].pid), world->rank);
  if (c->mode != SHM_TRANSFER) ad_text_add(&text, "call %" PRIu64 " of its group: ", c->sequence + 1);
  add_call(&text, c);
  ad_shm_raise(world->control, rank, AD_RANK_DIED, AD_RANK_DIED, words);
}

// Reports a death only if the launcher has not done so within `patience`: the launcher's report is better, since it
// knows the signal.
static void wait_for_death(shm_world *world, shm_call *c, uint32_t rank) {
  int64_t now = ad_now();
  if (!c->gone_since) c->gone_since = now;
  if (now - c->gone_since > patience) raise_death(world, c, rank);
}

static void raise_unreadable(shm_world *world, const shm_call *c, uint32_t rank, size_t bytes, int error) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  add_call(&text, c);
  ad_status status =
      ad_fail(AD_SYSTEM,
              "%zu bytes of the input of rank %u (process %d) could not be read by rank %u in %s (%s). Keep each "
              "buffer until its call is complete, or set ADDEND_STAGING=1 in the environment, with which ranks do not "
              "read each other's memory",
              bytes, rank, (int)atomic_load(&world->records[rank].pid), world->rank, words, strerror(error));
  ad_shm_raise_own(world, status);
}

// Finds out why a peer's memory could not be read: the peer has left, the peer has died, or its buffer is gone.
static void explain(shm_world *world, shm_call *c, uint32_t rank, size_t bytes, int error) {
  uint32_t state = atomic_load(&world->records[rank].state);
  if (state == SHM_LEFT)
    ad_shm_raise_left(world, c, rank);
  else if (error == ESRCH || state == SHM_DIED)
    wait_for_death(world, c, rank);
  else
    raise_unreadable(world, c, rank, bytes, error);
}

int ad_shm_pull(shm_world *world, shm_call *c, uint32_t rank, uint64_t from, void *to, size_t bytes) {
  const shm_record *record = &world->records[rank];
  for (size_t at = 0; at < bytes;) {
    size_t wanted = bytes - at < slice ? bytes - at : slice;
    if (ad_shm_failed(world)) return 0;
    ssize_t got = read_process(record, from + at, (char *)to + at, wanted);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      explain(world, c, rank, bytes, got ? errno : EFAULT);
      return 0;
    }
    at += (size_t)got;
  }
  // A peer that left, or noticed an error, may have reused its buffer before the bytes were read. So the bytes do not
  // count.
  if (ad_shm_failed(world)) return 0;
  if (atomic_load(&record->state) == SHM_JOINED) return 1;
  explain(world, c, rank, bytes, ESRCH);
  return 0;
}
