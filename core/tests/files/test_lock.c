/* Tests locks on folders: one holder at a time, no lock survives its holder's death, and no symbolic
 * link is followed. */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "files/file.h"
#include "files/lock.h"
#include "says.h"

#define must(call) assert_int_equal((call), AD_OK)

static char folder[64];

static int make_folder(void **state) {
  snprintf(folder, sizeof folder, "/tmp/addend-lock-XXXXXX");
  return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state) { return ad_folder_remove(folder) != AD_OK; }

/* Starts a process that holds the lock until it is killed. */
static pid_t start_holder(void) {
  int ready[2];
  char byte = 0;
  assert_int_equal(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    int lock;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // the holder dies with a failing test
    byte = ad_lock_take(folder, &lock) == AD_OK;
    if (write(ready[1], &byte, 1) != 1) _exit(1);
    for (;;) pause();
  }
  assert_int_equal(read(ready[0], &byte, 1), 1);
  assert_int_equal(byte, 1);
  close(ready[0]);
  close(ready[1]);
  return child;
}

static void a_folder_has_one_holder_and_a_kill_leaves_none(void **state) {
  int lock;
  char holder[64];
  pid_t child = start_holder();
  assert_int_equal(ad_lock_take(folder, &lock), AD_IO);
  assert_int_equal(lock, AD_LOCK_NONE);
  snprintf(holder, sizeof holder, "process %lld", (long long)child);
  assert_facts(ad_last_error(), folder, holder);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  must(ad_lock_take(folder, &lock));
  assert_int_not_equal(lock, AD_LOCK_NONE);
  ad_lock_give(lock);
  must(ad_lock_take(folder, &lock));
  ad_lock_give(lock);
}

static void a_link_in_the_locks_place_is_not_followed(void **state) {
  char link[96], victim[96];
  int lock;
  snprintf(link, sizeof link, "%s/.lock", folder);
  snprintf(victim, sizeof victim, "%s/victim", folder);
  assert_int_equal(symlink(victim, link), 0);
  assert_int_equal(ad_lock_take(folder, &lock), AD_IO);
  assert_says("/.lock");
  assert_int_not_equal(access(victim, F_OK), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(a_folder_has_one_holder_and_a_kill_leaves_none, make_folder, remove_folder),
      cmocka_unit_test_setup_teardown(a_link_in_the_locks_place_is_not_followed, make_folder, remove_folder),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
