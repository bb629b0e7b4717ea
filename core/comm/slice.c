/* Shortens the time slices of ranks that wait, so that other programs delay them less. */
#include "comm/slice.h"

#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's struct sched_attr in its first size, which the C library does not declare (sched_setattr(2)). For a
 * thread of an ordinary policy `runtime` is the length of its time slices in nanoseconds. */
typedef struct sched_attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
} sched_attributes;

/* The shortest slice that the kernel accepts. Measured in lab/measured/processor-not-noted.md ("Waiting"). */
static const uint64_t slice = 100000;

void ad_slice_shorten(void) {
  static _Thread_local int is_done;
  sched_attributes now;
  if (is_done) return;
  is_done = 1;
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0)) return;
  if (now.policy != SCHED_OTHER && now.policy != SCHED_BATCH) return;
  now.runtime = slice;
  // If this fails, waits take as long as they would without it.
  (void)!syscall(SYS_sched_setattr, 0, &now, 0);
}
