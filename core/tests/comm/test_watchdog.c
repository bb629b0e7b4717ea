/* Tests what the watchdog sees of ranks, and when it logs it: records of ranks are written by hand, and the clock is the
 * test's, so that no test waits. comm/launch holds it on real ranks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "comm/shm/file.h"
#include "comm/watchdog.h"
#include "says.h"

enum { RANKS = 3 };
static const int64_t second = 1000000000;

int64_t __wrap_ad_now(void);

static int64_t now;  // the watchdog's clock

int64_t __wrap_ad_now(void) { return now; }

/* ---- a world of three ranks: processes that sleep, and records that the test writes ---- */

typedef struct world {
  int fd;
  shm_control *control;
  shm_record *ranks;
  ad_watchdog *dog;
  pid_t sleeping, stopped;
  int reports;          // how often the watchdog has logged where ranks are
  char reported[8192];  // its last report
} world;

static void take_down(void *context, ad_log_level level, const char *message) {
  world *w = context;
  if (!strncmp(message, "ranks wait for ", 15)) w->reports++, w->reported[0] = 0;
  size_t length = strlen(w->reported);
  snprintf(w->reported + length, sizeof w->reported - length, "%s\n", message);
}

// The state of a process, as /proc has it.
static char state_of(pid_t pid) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  assert_int_equal(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
  fclose(file);
  return state;
}

// Starts a process that sleeps or is stopped, and waits until it is.
static pid_t start_process(int is_stopped) {
  pid_t pid = fork();
  assert_true(pid >= 0);
  if (!pid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (is_stopped) raise(SIGSTOP);
    for (;;) pause();
  }
  while (state_of(pid) != (is_stopped ? 'T' : 'S')) usleep(500);
  return pid;
}

static void end_process(pid_t pid) {
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
}

// Ranks that have joined and are in no call; `watcher` as the watchdog has it.
static world *open_world(int64_t watcher) {
  world *w = calloc(1, sizeof *w);
  assert_non_null(w);
  now = 1000 * second;
  assert_int_equal(ad_shm_make(RANKS, 1, 0, &w->fd, &w->control), AD_OK);
  w->control->launcher = watcher < 0;
  w->control->joining = RANKS;
  w->ranks = ad_shm_records(w->control);
  w->sleeping = start_process(0);
  w->stopped = start_process(1);
  for (int i = 0; i < RANKS; i++) {
    atomic_store(&w->ranks[i].state, SHM_JOINED);
    atomic_store(&w->ranks[i].pid, w->sleeping);
  }
  assert_int_equal(ad_watchdog_open(w->control, watcher, &w->dog), AD_OK);
  ad_set_log(take_down, w);
  return w;
}

static void close_world(world *w) {
  ad_set_log(NULL, NULL);
  ad_watchdog_close(w->dog);
  ad_shm_unmake(w->fd, w->control);
  end_process(w->sleeping);
  end_process(w->stopped);
  free(w);
}

static void begin_wait(world *w, int rank) {
  snprintf(w->ranks[rank].waits_words, SHM_WORDS, "all_reduce(sum) at w.c:%d", rank);
  atomic_store(&w->ranks[rank].epoch, 1);
}

// Looks once a second, for so many seconds.
static void look(world *w, int seconds) {
  for (int i = 0; i < seconds; i++) {
    now += second;
    ad_watchdog_look(w->dog);
  }
}

/* ---- when ranks are logged ---- */

static void a_wait_is_logged_after_ten_seconds_and_again_every_minute(void **state) {
  char process[32], stopped[32];
  world *w = open_world(-1);
  begin_wait(w, 0);
  atomic_store(&w->ranks[2].pid, w->stopped);
  look(w, 10);  // nine seconds after it was first seen to wait
  assert_int_equal(w->reports, 0);
  look(w, 1);
  assert_int_equal(w->reports, 1);
  snprintf(process, sizeof process, "process %d", (int)w->sleeping);
  snprintf(stopped, sizeof stopped, "kill -CONT %d", (int)w->stopped);
  assert_facts(w->reported, "10", "rank 0", "w.c:0", "rank 1", process, "rank 2", stopped);
  look(w, 59);
  assert_int_equal(w->reports, 1);
  look(w, 1);
  assert_int_equal(w->reports, 2);
  atomic_store(&w->ranks[0].epoch, 2);  // the wait ends, and the next one is reported in its own time
  look(w, 1);
  atomic_store(&w->ranks[0].epoch, 3);
  look(w, 10);
  assert_int_equal(w->reports, 2);
  close_world(w);
}

static void ranks_that_compute_are_reported_once_after_a_minute(void **state) {
  world *w = open_world(-1);
  begin_wait(w, 0);
  begin_wait(w, 2);
  for (int i = 0; i < 200; i++) {
    atomic_fetch_add(&w->ranks[1].calls, 1);
    look(w, 1);
    assert_int_equal(w->reports, i >= 60);
  }
  assert_facts(w->reported, "60", "rank 0", "rank 1", "rank 2");
  close_world(w);
}

static void a_stopped_rank_is_reported_though_no_rank_waits(void **state) {
  world *w = open_world(-1);
  atomic_store(&w->ranks[1].pid, w->stopped);
  look(w, 9);
  assert_int_equal(w->reports, 0);
  look(w, 1);
  assert_int_equal(w->reports, 1);
  close_world(w);
}

static void ranks_that_sleep_outside_of_calls_are_not_reported(void **state) {
  world *w = open_world(-1);
  look(w, 200);
  assert_int_equal(w->reports, 0);
  close_world(w);
}

static void nothing_is_reported_of_a_time_in_which_nobody_looked(void **state) {
  for (int gap = 3; gap < 5; gap++) {
    world *w = open_world(-1);
    begin_wait(w, 0);
    look(w, 9);
    now += gap * second;  // the launcher was stopped
    ad_watchdog_look(w->dog);
    assert_int_equal(w->reports, gap == 3);
    look(w, 9);
    assert_int_equal(w->reports, gap == 3);
    look(w, 1);
    assert_int_equal(w->reports, 1);
    close_world(w);
  }
}

static void after_an_error_nothing_is_reported(void **state) {
  world *w = open_world(-1);
  begin_wait(w, 0);
  atomic_store(&w->control->failed, 2);
  look(w, 100);
  assert_int_equal(w->reports, 0);
  close_world(w);
}

/* ---- ranks that join or leave ---- */

static void who_has_not_joined_is_named(void **state) {
  world *w = open_world(-1);
  atomic_store(&w->ranks[1].state, SHM_ABSENT);
  atomic_store(&w->control->joined, 2);
  look(w, 11);
  assert_int_equal(w->reports, 1);
  assert_facts(w->reported, "rank 0", "ad_comm_open", "rank 1");
  close_world(w);
}

// Under an MPI's launcher ranks leave together: a rank waits in ad_comm_close, and watches while it does.
static void who_waits_in_ad_comm_close_is_reported_for_whom_where_ranks_leave_together(void **state) {
  for (int64_t watcher = -1; watcher < 1; watcher++) {
    world *w = open_world(watcher);
    atomic_store(&w->ranks[0].state, SHM_LEFT);
    atomic_store(&w->ranks[2].state, SHM_LEFT);
    look(w, 10);
    assert_int_equal(w->reports, 0);
    look(w, 1);
    assert_int_equal(w->reports, watcher >= 0);
    if (watcher >= 0) assert_facts(w->reported, "rank 0", "ad_comm_close", "rank 2", "rank 1");
    close_world(w);
  }
}

// The first of several waiting ranks watches, unless its process is stopped.
static void the_first_rank_that_waits_and_can_watch_does(void **state) {
  for (int is_stopped = 0; is_stopped < 2; is_stopped++)
    for (int leaves = 0; leaves < 2; leaves++) {
      world *w = open_world(2);
      begin_wait(w, 2);
      if (!leaves) begin_wait(w, 0);
      if (leaves) atomic_store(&w->ranks[0].state, SHM_LEFT);
      if (is_stopped) atomic_store(&w->ranks[0].pid, w->stopped);
      look(w, 11);
      assert_int_equal(w->reports, is_stopped);
      close_world(w);
    }
}

/* ---- whom the others wait for ---- */

typedef struct blame {
  int waits, stopped, state;  // of rank 1; the others wait
  const char *fact;           // NULL: no rank is blamed
} blame;

static void ranks_that_are_stopped_or_in_no_collective_are_blamed(void **state) {
  static const blame cases[] = {
      {0, 0, SHM_JOINED, "rank 1"}, {0, 1, SHM_JOINED, "rank 1"}, {1, 1, SHM_JOINED, "rank 1"},
      {1, 0, SHM_JOINED, NULL},     {0, 0, SHM_LEFT, NULL},       {0, 1, SHM_DIED, NULL},
      {0, 0, SHM_ABSENT, NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char words[256] = "";
    ad_text text = ad_text_on(words, sizeof words);
    world *w = open_world(-1);
    begin_wait(w, 0);
    begin_wait(w, 2);
    if (cases[i].waits) begin_wait(w, 1);
    if (cases[i].stopped) atomic_store(&w->ranks[1].pid, w->stopped);
    atomic_store(&w->ranks[1].state, (uint32_t)cases[i].state);
    ad_watchdog_blame(w->dog, &text);
    if (cases[i].fact)
      assert_facts(words, cases[i].fact);
    else
      assert_string_equal(words, "");
    assert_int_equal(strstr(words, "stopped") != NULL, cases[i].fact && cases[i].stopped);
    assert_null(strstr(words, "rank 0"));
    assert_null(strstr(words, "rank 2"));
    close_world(w);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_wait_is_logged_after_ten_seconds_and_again_every_minute),
      cmocka_unit_test(ranks_that_compute_are_reported_once_after_a_minute),
      cmocka_unit_test(a_stopped_rank_is_reported_though_no_rank_waits),
      cmocka_unit_test(ranks_that_sleep_outside_of_calls_are_not_reported),
      cmocka_unit_test(nothing_is_reported_of_a_time_in_which_nobody_looked),
      cmocka_unit_test(after_an_error_nothing_is_reported),
      cmocka_unit_test(who_has_not_joined_is_named),
      cmocka_unit_test(who_waits_in_ad_comm_close_is_reported_for_whom_where_ranks_leave_together),
      cmocka_unit_test(the_first_rank_that_waits_and_can_watch_does),
      cmocka_unit_test(ranks_that_are_stopped_or_in_no_collective_are_blamed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
