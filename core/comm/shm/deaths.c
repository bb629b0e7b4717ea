/* Finds out by means of a descriptor (pidfd_open) that a process has ended. The descriptor stays with that process
 * even if another process later gets the same pid, and it shows the end of a process even if its parent has not
 * collected the exit status yet. */
#include "comm/shm/deaths.h"

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/memory.h"
#include "base/text.h"
#include "comm/shm/error.h"

enum { UNWATCHED = -1, ENDED = -2 };  // in place of a descriptor: not watched; its end was noticed

static int watch(int32_t pid) {
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  return fd >= 0 ? fd : errno == ESRCH ? ENDED : UNWATCHED;
}

ad_status ad_shm_deaths_begin(shm_world *world, const int32_t *pids) {
  AD_TRY(ad_new(world->ranks, &world->processes));
  for (uint32_t rank = 0; rank < world->ranks; rank++)
    world->processes[rank] = rank == world->rank ? UNWATCHED : watch(pids[rank]);
  return AD_OK;
}

void ad_shm_deaths_end(shm_world *world) {
  for (uint32_t rank = 0; world->processes && rank < world->ranks; rank++)
    if (world->processes[rank] >= 0) close(world->processes[rank]);
  ad_release(world->processes);
  world->processes = NULL;
}

static int has_ended(int process) {
  struct pollfd one = {.fd = process, .events = POLLIN};
  return process == ENDED || (process >= 0 && poll(&one, 1, 0) > 0);
}

static void raise_dead(shm_world *world, uint32_t rank, int has_joined) {
  char words[AD_MESSAGE_MAX];
  ad_text text = ad_text_on(words, sizeof words);
  ad_text_add(&text, "rank %u died", rank);
  if (has_joined)
    ad_text_add(&text, ": its process %d ended without closing its communicator",
                (int)atomic_load(&world->records[rank].pid));
  else
    ad_text_add(&text, " before all ranks had joined the world");
  ad_shm_raise(world->control, world->rank, AD_RANK_DIED, AD_RANK_DIED, words);
}

void ad_shm_look_for_dead(shm_world *world) {
  for (uint32_t rank = 0; rank < world->ranks; rank++) {
    if (!has_ended(world->processes[rank])) continue;
    // The state is read after the process is known to have ended, so it is the last state that the process set.
    uint32_t state = atomic_load(&world->records[rank].state);
    if (state == SHM_JOINED || state == SHM_ABSENT) raise_dead(world, rank, state == SHM_JOINED);
  }
}
