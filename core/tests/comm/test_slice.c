/* Tests that a rank that waits asks for short time slices, and changes nothing else of how its thread is scheduled. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "ranks.h"
#include "comm/slice.h"

enum { SLICE = 100000, RANKS = 3 };  // nanoseconds; ranks

typedef struct attributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime, deadline, period;
} attributes;

static attributes of_this_thread(void) {
  attributes now = {0};
  if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0)) now.size = 0;
  return now;
}

/* Rank 0 comes late, so that the others wait. A kernel that knows no slices of ordinary threads says 0, and where the
 * system forbids to set them they stay as they are. */
static int run_late(ad_comm *comm, void *context) {
  (void)context;
  ad_mesh *mesh;
  attributes before = of_this_thread();
  int may_set = !syscall(SYS_sched_setattr, 0, &before, 0);
  CHECK(before.size && !setpriority(PRIO_PROCESS, 0, 3));
  CHECK(ad_mesh_create("dp=3", &mesh) == AD_OK);
  ad_group group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  if (!ad_comm_rank(comm)) usleep(50000);
  CHECK(ad_comm_barrier(comm, &group) == AD_OK);
  attributes after = of_this_thread();
  CHECK(after.nice == 3 && after.policy == before.policy && after.flags == before.flags);
  if (ad_comm_rank(comm)) CHECK(after.runtime == (before.runtime && may_set ? SLICE : before.runtime));
  ad_mesh_destroy(mesh);
  return 0;
}

static void a_rank_that_waits_has_short_slices(void **state) { run_ranks(RANKS, run_late, NULL); }

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_that_waits_has_short_slices)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
