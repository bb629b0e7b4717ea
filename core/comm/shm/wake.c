/* Waking ranks that sleep. */
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "comm/shm/wait.h"

static void wake(shm_record *record) {
  atomic_fetch_add_explicit(&record->wake, 1, memory_order_release);
  syscall(SYS_futex, &record->wake, FUTEX_WAKE, 1, NULL, NULL, 0);
}

// Makes no system call if no rank seems to sleep. May overlook a rank that is just falling asleep: that rank then
// sleeps until its sleep ends by itself.
void ad_shm_wake(shm_world *world, const shm_channel *channel) {
  if (!atomic_load_explicit(&world->control->sleepers, memory_order_relaxed)) return;
  for (uint32_t i = 0; i < channel->members; i++)
    if (i != channel->index) wake(&world->records[ad_shape_rank(&channel->shape, i)]);
}

void ad_shm_wake_rank(shm_world *world, uint32_t rank) {
  if (rank != world->rank && atomic_load_explicit(&world->control->sleepers, memory_order_relaxed))
    wake(&world->records[rank]);
}

void ad_shm_wake_all(shm_control *control) {
  for (uint64_t i = 0; i < control->ranks; i++) wake(&ad_shm_records(control)[i]);
}
