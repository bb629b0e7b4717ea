/* Tests that running out of shared memory is reported as an error: memory that was promised to other ranks but is not
 * yet touched counts as used. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "comm/backend.h"
#include "comm/shm/backend.h"
#include "comm/shm/file.h"
#include "comm/shm/join.h"
#include "says.h"

enum { LARGE = 8 << 20 };

typedef struct world {
  shm_world *shm;
  ad_comm *comm;
} world;

static int open_world(void **state) {
  static world w;
  shm_control *control = NULL;
  int fd = -1;
  *state = &w;
  if (ad_shm_make(1, 0, 0, &fd, &control) || ad_shm_join(fd, control, 0, NULL, &w.shm)) return 1;
  return ad_comm_create(&ad_backend_shm, w.shm, 0, 1, &w.comm) != AD_OK;
}

static int close_world(void **state) {
  ad_comm_close(((world *)*state)->comm);
  return 0;
}

static long blocks_of(const shm_world *shm) {
  struct stat file;
  assert_int_equal(fstat(shm->fd, &file), 0);
  return (long)file.st_blocks;
}

static void what_others_were_promised_is_gone(void **state) {
  world *w = *state;
  void *memory = NULL;
  uint64_t promised = UINT64_MAX / 2;  // bytes of pages that other ranks are allocating at this moment
  atomic_store(&w->shm->control->promised, promised);
  long before = blocks_of(w->shm);
  assert_int_equal(ad_comm_alloc(w->comm, LARGE, &memory), AD_MEMORY);
  assert_null(memory);
  assert_says("8388608");
  assert_says("9223372036854775807");
  assert_true(atomic_load(&w->shm->control->promised) == promised);
  assert_int_equal(blocks_of(w->shm), before);
  atomic_store(&w->shm->control->promised, 0);
}

/* The error is that of the call that failed first: too many open files, not a file that could not grow. */
static void a_file_that_could_not_be_made_is_reported(void **state) {
  struct rlimit before, none;
  shm_control *control = NULL;
  int fd = -1, lowest = dup(0);
  assert_true(lowest >= 0 && !close(lowest) && !getrlimit(RLIMIT_NOFILE, &before));
  none = (struct rlimit){(rlim_t)lowest, before.rlim_max};
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
  ad_status status = ad_shm_make(1, 0, 0, &fd, &control);
  assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
  assert_int_equal(status, AD_SYSTEM);
  assert_non_null(strstr(ad_last_error(), strerror(EMFILE)));
  assert_true(fd < 0 && !control);
}

static void a_promise_ends_when_the_pages_are_there(void **state) {
  world *w = *state;
  char *memory;
  size_t bytes = 70u << 20;  // more than one piece of memory
  long before = blocks_of(w->shm);
  assert_int_equal(ad_comm_alloc(w->comm, bytes + 8, (void **)&memory), AD_OK);
  assert_true(atomic_load(&w->shm->control->promised) == 0);
  assert_true((blocks_of(w->shm) - before) * 512 >= (long)bytes);
  assert_int_equal(memory[0] | memory[bytes / 2] | memory[bytes + 7], 0);
  ad_comm_free(w->comm, memory);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_others_were_promised_is_gone, open_world, close_world),
      cmocka_unit_test_setup_teardown(a_promise_ends_when_the_pages_are_there, open_world, close_world),
      cmocka_unit_test(a_file_that_could_not_be_made_is_reported),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
