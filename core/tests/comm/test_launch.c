/* Tests starting and ending ranks: deaths in every phase, signals, whole programs as ranks, and that no process or file
 * is left behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "ranks.h"
#include "says.h"

pid_t __real_waitpid(pid_t pid, int *status, int options);
pid_t __wrap_waitpid(pid_t pid, int *status, int options);

static int collections;  // calls of waitpid

pid_t __wrap_waitpid(pid_t pid, int *status, int options) {
  collections++;
  return __real_waitpid(pid, status, options);
}

static ad_status launch(int64_t ranks, int (*function)(ad_comm *, void *), void *context, ad_launch_result *result) {
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = function, .context = context};
  return ad_launch(&options, result);
}

// Whether this process still has children, running or not yet waited for.
static int children_left(void) { return waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD; }

static int files_in_shared_memory(void) {
  int count = 0;
  DIR *folder = opendir("/dev/shm");
  if (!folder) return 0;
  for (struct dirent *entry; (entry = readdir(folder));) count += strstr(entry->d_name, "addend") != NULL;
  closedir(folder);
  return count;
}

static int nothing_left(void **state) { return children_left() || files_in_shared_memory(); }

/* ---- starting ranks ---- */

static int do_nothing(ad_comm *comm, void *context) { return 0; }

static void thirty_two_ranks_start_and_join(void **state) {
  ad_launch_result result = {.size = sizeof result};
  ad_status status = launch(32, do_nothing, NULL, &result);
  assert_string_equal(result.message, "");
  assert_int_equal(status, AD_OK);
  assert_int_equal(result.rank, -1);
}

static int sleep_a_while(ad_comm *comm, void *context) { return usleep(300000); }

static void a_rank_is_collected_once_when_its_process_has_ended(void **state) {
  ad_launch_result result = {.size = sizeof result};
  collections = 0;
  assert_int_equal(launch(3, sleep_a_while, NULL, &result), AD_OK);
  assert_int_equal(collections, 3);
}

static int exit_with_rank(ad_comm *comm, void *context) { return ad_comm_rank(comm) == 1 ? 7 : 0; }

static void the_failing_ranks_exit_status_is_reported(void **state) {
  ad_launch_result result = {.size = sizeof result};
  assert_int_equal(launch(3, exit_with_rank, NULL, &result), AD_PEER_FAILED);
  assert_int_equal(result.rank, 1);
  assert_int_equal(result.exit_status, 7);
  assert_int_equal(result.signal, 0);
  assert_int_equal(result.status, AD_OK);
}

static int report_what_is_wrong(ad_comm *comm, void *cause) {
  if (ad_comm_rank(comm) == 1) ad_comm_fail(comm, *(ad_status *)cause, "no such key");
  return 1;
}

static void an_error_with_words_is_reported_by_them_alone(void **state) {
  ad_launch_result result = {.size = sizeof result};
  ad_status cause = AD_SYSTEM;
  assert_int_equal(launch(3, report_what_is_wrong, &cause, &result), AD_PEER_FAILED);
  assert_says("rank 1");
  cause = AD_INVALID;  // all ranks have the error, and any of them may be first
  assert_int_equal(launch(3, report_what_is_wrong, &cause, &result), AD_PEER_FAILED);
  assert_listed();
}

static int report_nothing(ad_comm *comm, void *words) {
  if (ad_comm_rank(comm) == 1) ad_comm_fail(comm, AD_MEMORY, words);
  return 1;
}

static void an_error_without_words_is_reported_by_its_status(void **state) {
  static char nothing[] = "";
  char *words[] = {NULL, nothing};
  ad_launch_result result = {.size = sizeof result};
  for (int i = 0; i < 2; i++) {
    assert_int_equal(launch(3, report_nothing, words[i], &result), AD_PEER_FAILED);
    assert_int_equal(result.status, AD_MEMORY);
    assert_says("rank 1");
  }
}

static void wrong_options_are_refused(void **state) {
  ad_launch_result result = {.size = sizeof result};
  ad_launch_options options = {.size = sizeof options, .ranks = 0, .function = do_nothing};
  assert_int_equal(ad_launch(&options, &result), AD_INVALID);
  options.ranks = 1000000;
  assert_int_equal(ad_launch(&options, &result), AD_INVALID);
  options = (ad_launch_options){.size = sizeof options, .ranks = 2};
  assert_int_equal(ad_launch(&options, &result), AD_INVALID);
  options = (ad_launch_options){.size = 1, .ranks = 2, .function = do_nothing};
  assert_int_equal(ad_launch(&options, &result), AD_INVALID);
}

static void refused_naming(const char *name, const char *start, const char *unset) {
  ad_comm *comm;
  ad_launch_result result = {.size = sizeof result};
  assert_int_equal(ad_comm_open(&comm), AD_INVALID);
  assert_says_in(name, ad_last_error(), SAYS_FACTS(start, unset)); /* the list of the launcher */
  assert_int_equal(launch(2, do_nothing, NULL, &result), AD_INVALID);
  assert_says(unset);
}

static void refused_under(const char *rank, const char *ranks, const char *name) {
  ad_comm *comm;
  char variables[64];
  snprintf(variables, sizeof variables, "%s %s", rank, ranks);
  setenv(ranks, "4", 1);  // a launcher's number of ranks above 1 is enough, whichever rank this is
  refused_naming(name, "-n 4", variables);
  setenv(rank, "2", 1);
  refused_naming(name, "-n 4", variables);
  setenv(ranks, "1", 1);  // a world of one process may open alone
  assert_int_equal(ad_comm_open(&comm), AD_OK);
  ad_comm_close(comm);
  unsetenv(rank);
  unsetenv(ranks);
}

// Some launchers set a rank but not the number of ranks.
static void refused_under_rank(const char *rank, const char *name) {
  setenv(rank, "0", 1);
  refused_naming(name, "-n N", rank);
  unsetenv(rank);
}

static void another_launchers_world_is_refused_by_name(void **state) {
  refused_under("RANK", "WORLD_SIZE", "torchrun");
  refused_under("HOROVOD_RANK", "HOROVOD_SIZE", "horovodrun");
  refused_under("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "flux run");
  refused_under("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH2");
  refused_under_rank("PALS_RANKID", "PALS");
  refused_under_rank("PMIX_RANK", "PMIx");
}

static int launch_in_rank(ad_comm *comm, void *context) {
  ad_launch_result result = {.size = sizeof result};
  CHECK_STATUS(launch(2, do_nothing, NULL, &result), AD_INVALID);
  CHECK_SAYS("ad_comm_open");
  return 0;
}

static void a_rank_starts_no_world_of_its_own(void **state) { run_ranks(2, launch_in_rank, NULL); }

static void *wait_for_end(void *end) {
  while (!atomic_load((atomic_int *)end)) usleep(1000);
  return NULL;
}

static void ranks_are_not_forked_beside_threads(void **state) {
  atomic_int end = 0;
  pthread_t thread;
  ad_launch_result result = {.size = sizeof result};
  assert_int_equal(pthread_create(&thread, NULL, wait_for_end, &end), 0);
  ad_status status = launch(2, do_nothing, NULL, &result);
  atomic_store(&end, 1);
  pthread_join(thread, NULL);
  assert_int_equal(status, AD_INVALID);
  assert_listed();
  assert_int_equal(launch(2, do_nothing, NULL, &result), AD_OK);
}

/* ---- whole programs as ranks ---- */

static ad_status launch_program(int64_t ranks, const char *script, ad_launch_result *result) {
  char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .argv = argv};
  return ad_launch(&options, result);
}

static const char *self;  // path of this test program, which joins as a rank if ADDEND_SHM_FD is set

static void programs_join_the_world(void **state) {
  char script[1024];
  ad_launch_result result = {.size = sizeof result};
  snprintf(script, sizeof script, "exec '%s' sum", self);
  assert_int_equal(launch_program(3, script, &result), AD_OK);
  assert_int_equal(result.joined, 3);
  snprintf(script, sizeof script, "'%s' sum; exit $?", self);  // a shell between launcher and rank
  assert_int_equal(launch_program(3, script, &result), AD_OK);
  assert_int_equal(launch_program(3, "exit 0", &result), AD_OK);
  assert_int_equal(result.joined, 0);
}

static void a_program_that_does_not_exist_is_an_error(void **state) {
  ad_launch_result result = {.size = sizeof result};
  char *argv[] = {"/nowhere/no-such-program", NULL};
  ad_launch_options options = {.size = sizeof options, .ranks = 2, .argv = argv};
  assert_int_equal(ad_launch(&options, &result), AD_SYSTEM);
  assert_says("/nowhere/no-such-program");
}

static void a_program_that_never_joins_is_named(void **state) {
  char script[1024];
  ad_launch_result result = {.size = sizeof result};
  /* rank 1 ends only once rank 0 sleeps and waits for it, however slowly rank 0 started */
  snprintf(script, sizeof script,
           "BEGUN=${TMPDIR:-/tmp}/begun-$PPID; export BEGUN; test $ADDEND_RANK = 0 && exec '%s' expect-left\n"
           "until test -s $BEGUN; do sleep 0.05; done; asleep=0\n"
           "while test $asleep -lt 4; do\n"
           "  case $(sed 's/.*) //' /proc/$(cat $BEGUN)/stat) in S*) asleep=$((asleep + 1));; *) asleep=0;; esac\n"
           "  sleep 0.05\n"
           "done\n"
           "rm $BEGUN; exit 4",
           self);
  assert_int_equal(launch_program(2, script, &result), AD_PEER_FAILED);
  assert_text_says(result.message, "rank 1", "4");
}

static void a_program_killed_under_a_shell_died(void **state) {
  char script[1024];
  ad_launch_result result = {.size = sizeof result};
  snprintf(script, sizeof script, "'%s' die; exit $?", self);
  assert_int_equal(launch_program(2, script, &result), AD_RANK_DIED);
  assert_int_equal(result.rank, 1);
  assert_facts(result.message, "SIGKILL");
}

static ad_status sum_ranks(ad_comm *comm) {
  ad_mesh *mesh;
  char text[32];
  int32_t sum = (int32_t)ad_comm_rank(comm);
  snprintf(text, sizeof text, "dp=%d", (int)ad_comm_size(comm));
  AD_TRY(ad_mesh_create(text, &mesh));
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = &sum, .out = &sum, .count = 1, .dtype = AD_I32, .site = AD_HERE};
  call.group = ad_mesh_group(mesh, AD_AXES_ALL, ad_comm_rank(comm));
  ad_status status = ad_comm_run(comm, &call);
  ad_mesh_destroy(mesh);
  return status ? status : sum == ad_comm_size(comm) * (ad_comm_size(comm) - 1) / 2 ? AD_OK : AD_NUMBER;
}

static void write_own_number(const char *path) {
  FILE *file = fopen(path, "w");
  if (!file) abort();
  fprintf(file, "%d\n", (int)getpid());
  fclose(file);
}

static int join_as(const char *what) {
  ad_comm *comm;
  const char *begun = getenv("BEGUN");
  if (begun) write_own_number(begun);
  ad_status status = ad_comm_open(&comm);
  if (!strcmp(what, "expect-left")) return status == AD_RANK_LEFT ? 3 : 1;
  if (status) return 1;
  if (!strcmp(what, "die") && ad_comm_rank(comm) == 1) raise(SIGKILL);
  status = sum_ranks(comm);
  ad_comm_close(comm);
  return status;
}

/* ---- ranks that die ---- */

enum { PHASES = 7 };

typedef struct death {
  int phase;
  int64_t rank;
} death;

static void die_in(const death *d, int phase, int64_t rank) {
  if (d->phase == phase && d->rank == rank) raise(SIGKILL);
}

// Runs through everything that a rank does; rank d->rank dies in phase d->phase. Returns 0 if no rank died.
static int live_and_die(ad_comm *comm, void *context) {
  const death *d = context;
  int64_t rank = ad_comm_rank(comm);
  enum { COUNT = 1 << 20 };
  ad_mesh *mesh;
  float *shared, *own = malloc(COUNT * sizeof *own);
  ad_request request;
  int done;
  ad_status status;
  die_in(d, 0, rank);
  if (!own || ad_mesh_create("dp=3", &mesh) || ad_comm_alloc(comm, COUNT * sizeof *shared, (void **)&shared)) return 1;
  memset(own, 0, COUNT * sizeof *own);
  die_in(d, 1, rank);
  ad_collective call = {
      .size = sizeof call, .op = AD_ALL_REDUCE, .in = shared, .out = shared, .count = COUNT, .dtype = AD_F32};
  call.group = ad_mesh_group(mesh, AD_AXES_ALL, rank);
  call.site = AD_HERE;
  double start = rank_seconds();
  status = ad_comm_run(comm, &call);
  die_in(d, 2, rank);
  if (!status) status = ad_comm_post(comm, &call, &request);
  die_in(d, 3, rank);
  if (!status) status = ad_comm_test(comm, &request, &done);
  die_in(d, 4, rank);
  if (!status) status = ad_comm_wait(comm, &request);
  call.in = call.out = own;
  if (!status) status = ad_comm_post(comm, &call, &request);
  die_in(d, 5, rank);
  if (!status) status = ad_comm_wait(comm, &request);
  die_in(d, 6, rank);
  while (!status && d->phase < PHASES && rank_seconds() - start < RANK_HANGS)
    status = ad_comm_barrier(comm, &call.group);
  if (d->phase < PHASES && status != AD_RANK_DIED) return 1;
  ad_mesh_destroy(mesh);
  free(own);
  return status == AD_RANK_DIED ? 3 : (int)status;
}

static void a_killed_rank_is_named_on_all_ranks(void **state) {
  for (int phase = 0; phase <= PHASES; phase++) {
    death d = {phase, phase % 3};
    ad_launch_result result = {.size = sizeof result};
    char rank[24];
    ad_status status = launch(3, live_and_die, &d, &result);
    if (phase == PHASES) {
      assert_int_equal(status, AD_OK);
      continue;
    }
    snprintf(rank, sizeof rank, "rank %d", (int)d.rank);
    assert_int_equal(status, AD_RANK_DIED);
    assert_int_equal(result.rank, d.rank);
    assert_int_equal(result.signal, SIGKILL);
    assert_int_equal(result.exit_status, 128 + SIGKILL);
    assert_int_equal(result.status, AD_RANK_DIED);
    assert_text_says(result.message, rank, "signal 9", "SIGKILL");
    assert_false(nothing_left(NULL));
  }
}

// A rank that does not look at errors is ended.
static int compute_forever(ad_comm *comm, void *context) {
  if (ad_comm_rank(comm) == 0) abort();
  sleep(2 * RANK_HANGS);
  return 0;
}

static void ranks_that_go_on_after_an_error_are_ended(void **state) {
  ad_launch_result result = {.size = sizeof result};
  double start = rank_seconds();
  assert_int_equal(launch(3, compute_forever, NULL, &result), AD_RANK_DIED);
  assert_true(rank_seconds() - start < RANK_HANGS);
  assert_int_equal(result.rank, 0);
  assert_int_equal(result.signal, SIGABRT);
}

/* ---- the launcher is asked to stop, or dies ---- */

static int wait_forever(ad_comm *comm, void *context) {
  pid_t *pids = context;
  pids[ad_comm_rank(comm)] = getpid();
  sleep(2 * RANK_HANGS);
  return 0;
}

// Runs ad_launch in a child process, which first calls `prepare`; sends it a signal and returns how it ended.
static int launch_and_signal(void (*prepare)(void), int signal_number, pid_t *pids) {
  pid_t launcher = fork();
  if (!launcher) {
    ad_launch_result result = {.size = sizeof result};
    if (prepare) prepare();
    _exit(launch(3, wait_forever, pids, &result) == AD_INTERRUPTED && result.signal == signal_number ? 11 : 1);
  }
  for (int i = 0; i < 100 * RANK_HANGS && !(pids[0] && pids[1] && pids[2]); i++) usleep(10000);
  kill(launcher, signal_number);
  int status;
  waitpid(launcher, &status, 0);
  return status;
}

static int all_gone(const pid_t *pids) {
  for (int wait = 0; wait < 100 * RANK_HANGS; wait++) {
    int alive = 0;
    for (int i = 0; i < 3; i++) alive += !kill(pids[i], 0);
    if (!alive) return 1;
    usleep(10000);
  }
  return 0;
}

static void ranks_end_with_their_launcher(void **state) {
  static const int signals[] = {SIGINT, SIGTERM, SIGKILL};
  for (int i = 0; i < 3; i++) {
    pid_t *pids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pids != MAP_FAILED);
    int status = launch_and_signal(NULL, signals[i], pids);
    if (signals[i] == SIGKILL)
      assert_true(WIFSIGNALED(status));
    else
      assert_int_equal(WEXITSTATUS(status), 11);
    assert_true(all_gone(pids));
    munmap(pids, 4096);
  }
}

/* ---- ranks that stand still, and the watchdog's messages ---- */

typedef struct stall {
  atomic_int heard, pid;
  int reported[2]; /* a pipe; gets a byte once the message was logged */
  char words[4096];
} stall;

// Collects log messages; once all three ranks have been named lets the ranks continue.
static void take_down(void *context, ad_log_level level, const char *message) {
  stall *s = context;
  size_t length = strlen(s->words);
  snprintf(s->words + length, sizeof s->words - length, "%s\n", message);
  if (!strstr(s->words, "rank 0") || !strstr(s->words, "rank 1 (") || !strstr(s->words, "rank 2 (")) return;
  atomic_store(&s->heard, 1);
  if (write(s->reported[1], "", 1) != 1) return;
  kill(atomic_load(&s->pid), SIGCONT);
}

// After one sum rank 1 stops (SIGSTOP) and rank 2 sleeps, while rank 0 waits for both in the next sum.
static int stall_after_a_sum(ad_comm *comm, void *context) {
  stall *s = context;
  CHECK_OK(sum_ranks(comm));
  if (ad_comm_rank(comm) == 1) {
    atomic_store(&s->pid, getpid());
    raise(SIGSTOP);
  }
  struct pollfd reported = {s->reported[0], POLLIN, 0};
  if (ad_comm_rank(comm) == 2) poll(&reported, 1, RANK_HANGS * 1000);  // asleep until the message was logged
  if (ad_comm_rank(comm) == 2) kill(atomic_load(&s->pid), SIGCONT);    // in case nothing was logged
  CHECK_OK(sum_ranks(comm));
  return 0;
}

static void a_stall_is_reported_rank_by_rank(void **state) {
  ad_launch_result result = {.size = sizeof result};
  stall *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(s != MAP_FAILED);
  assert_int_equal(pipe(s->reported), 0);
  ad_set_log(take_down, s);
  ad_status status = launch(3, stall_after_a_sum, s, &result);
  ad_set_log(NULL, NULL);
  assert_int_equal(status, AD_OK);
  assert_true(atomic_load(&s->heard));
  assert_facts(s->words, "rank 0", "ranks 1,2", "all_reduce(sum)", "1 i32", "{0,1,2}", "test_launch.c", "-CONT");
  for (int i = 0; i < 2; i++) close(s->reported[i]);
  munmap(s, sizeof *s);
}

static void take_down_work(void *context, ad_log_level level, const char *message) {
  stall *s = context;
  size_t length = strlen(s->words);
  snprintf(s->words + length, sizeof s->words - length, "%s\n", message);
  if (strstr(s->words, "rank 1 (")) atomic_store(&s->heard, 1);
}

static double processor_seconds(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* Uses a fifth of the processor's time: four times what the watchdog counts as computing, and other tests may use the
 * rest. If they leave it less, it continues to compute, so that it never looks asleep. */
static void compute_until(atomic_int *heard) {
  double start = rank_seconds(), used = processor_seconds();
  while (!atomic_load(heard) && rank_seconds() - start < 3 * RANK_HANGS)
    if (processor_seconds() - used > 0.2 * (rank_seconds() - start)) usleep(8000);
}

static int compute_until_reported(ad_comm *comm, void *context) {
  stall *s = context;
  CHECK_OK(sum_ranks(comm));
  if (ad_comm_rank(comm) == 1) compute_until(&s->heard);
  CHECK_OK(sum_ranks(comm));
  return 0;
}

static void a_rank_that_computes_is_no_alarm_but_reported_after_a_minute(void **state) {
  int waited = 0;
  ad_launch_result result = {.size = sizeof result};
  stall *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_true(s != MAP_FAILED);
  ad_set_log(take_down_work, s);
  ad_status status = launch(3, compute_until_reported, s, &result);
  ad_set_log(NULL, NULL);
  if (status) fail_msg("%s", ad_last_error());
  assert_true(atomic_load(&s->heard));
  assert_int_equal(sscanf(s->words, "ranks wait for %d s already", &waited), 1);  // the first message
  assert_true(waited >= 60);
  assert_facts(s->words, "all_reduce(sum)", "1 i32", "{0,1,2}", "test_launch.c");
  munmap(s, sizeof *s);
}

// Makes pidfd_open fail from here on, as on a kernel that does not have it.
static void forbid_pidfd(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(77);
}

// Limits this process to two more file descriptors, which the memory file and the signals need.
static void leave_no_descriptors(void) {
  int free_one = dup(0);
  struct rlimit limit = {(rlim_t)free_one + 2, (rlim_t)free_one + 2};
  close(free_one);
  if (free_one < 0 || setrlimit(RLIMIT_NOFILE, &limit)) _exit(77);
}

static int launch_prepared(void (*prepare)(void)) {
  pid_t launcher = fork();
  if (!launcher) {
    ad_launch_result result = {.size = sizeof result};
    prepare();
    alarm(60);
    _exit(launch(8, exit_with_rank, NULL, &result) == AD_PEER_FAILED && result.rank == 1 ? 12 : 1);
  }
  int status;
  waitpid(launcher, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void ranks_are_watched_where_the_kernel_does_not_help(void **state) {
  static void (*const prepare[])(void) = {forbid_pidfd, leave_no_descriptors};
  for (int i = 0; i < 2; i++) {
    pid_t *pids = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(pids != MAP_FAILED);
    assert_int_equal(launch_prepared(prepare[i]), 12);
    assert_int_equal(WEXITSTATUS(launch_and_signal(prepare[i], SIGTERM, pids)), 11);
    assert_true(all_gone(pids));
    munmap(pids, 4096);
  }
}

int main(int argc, char **argv) {
  self = argv[0];
  if (argc > 1) return join_as(argv[1]);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(thirty_two_ranks_start_and_join, nothing_left),
      cmocka_unit_test_teardown(a_rank_is_collected_once_when_its_process_has_ended, nothing_left),
      cmocka_unit_test_teardown(the_failing_ranks_exit_status_is_reported, nothing_left),
      cmocka_unit_test_teardown(an_error_with_words_is_reported_by_them_alone, nothing_left),
      cmocka_unit_test_teardown(an_error_without_words_is_reported_by_its_status, nothing_left),
      cmocka_unit_test_teardown(wrong_options_are_refused, nothing_left),
      cmocka_unit_test_teardown(another_launchers_world_is_refused_by_name, nothing_left),
      cmocka_unit_test_teardown(a_rank_starts_no_world_of_its_own, nothing_left),
      cmocka_unit_test_teardown(ranks_are_not_forked_beside_threads, nothing_left),
      cmocka_unit_test_teardown(programs_join_the_world, nothing_left),
      cmocka_unit_test_teardown(a_program_that_does_not_exist_is_an_error, nothing_left),
      cmocka_unit_test_teardown(a_program_that_never_joins_is_named, nothing_left),
      cmocka_unit_test_teardown(a_program_killed_under_a_shell_died, nothing_left),
      cmocka_unit_test_teardown(a_killed_rank_is_named_on_all_ranks, nothing_left),
      cmocka_unit_test_teardown(ranks_that_go_on_after_an_error_are_ended, nothing_left),
      cmocka_unit_test_teardown(ranks_end_with_their_launcher, nothing_left),
      cmocka_unit_test_teardown(a_stall_is_reported_rank_by_rank, nothing_left),
      cmocka_unit_test_teardown(a_rank_that_computes_is_no_alarm_but_reported_after_a_minute, nothing_left),
      cmocka_unit_test_teardown(ranks_are_watched_where_the_kernel_does_not_help, nothing_left),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
