/* Tests worlds of processes that addend's launcher did not start: they meet in a folder, through ad_comm_join, or
 * through torchrun's environment variables. Every rank is a child process of the test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "addend/comm.h"
#include "base/random.h"
#include "comm/meet.h"
#include "ranks.h"
#include "says.h"

enum { RANKS_MAX = 8, WRONG = 1 };

/* ---- a rendezvous through files in a folder ---- */

typedef struct folder {
  char path[64];
  int dies_at; /* the rank kills itself at its get number `dies_at`; 0: never */
  int gets;
} folder;

static void file_of(const folder *f, const char *key, char *out, size_t size) {
  snprintf(out, size, "%s/%s", f->path, key);
  for (char *c = out + strlen(f->path) + 1; *c; c++)
    if (*c == '/') *c = '-';
}

static ad_status put(void *context, const char *key, const void *value, size_t bytes) {
  char name[256], whole[300];
  file_of(context, key, name, sizeof name);
  snprintf(whole, sizeof whole, "%s.%d", name, (int)getpid());
  FILE *file = fopen(whole, "w");
  if (!file || fwrite(value, 1, bytes, file) != bytes || fclose(file) || rename(whole, name))
    return ad_fail(AD_IO, "%s cannot be written", name);
  return AD_OK;
}

static ad_status wait_for(void *context, const char *key, int64_t seconds) {
  char name[256];
  file_of(context, key, name, sizeof name);
  for (double end = rank_seconds() + (double)seconds; access(name, R_OK);) {
    if (rank_seconds() > end) return ad_fail(AD_SYSTEM, "%s is not there", name);
    usleep(2000);
  }
  return AD_OK;
}

static ad_status get(void *context, const char *key, void *value, size_t bytes) {
  folder *f = context;
  char name[256];
  struct stat found;
  if (++f->gets == f->dies_at) raise(SIGKILL);
  file_of(context, key, name, sizeof name);
  FILE *file = fopen(name, "r");
  if (!file || fstat(fileno(file), &found) || (size_t)found.st_size != bytes || fread(value, 1, bytes, file) != bytes)
    return ad_fail(AD_IO, "%s has not %zu bytes", name, bytes);
  fclose(file);
  return AD_OK;
}

static ad_rendezvous in_folder(folder *f) {
  return (ad_rendezvous){
      .size = sizeof(ad_rendezvous), .context = f, .put = put, .wait = wait_for, .get = get, .seconds = RANK_HANGS};
}

/* ---- ranks as child processes ---- */

typedef struct world {
  folder folder;
  int64_t ranks;
} world;

static world begin(int64_t ranks) {
  world w = {.folder.path = "/tmp/addend-join-XXXXXX", .ranks = ranks};
  assert_non_null(mkdtemp(w.folder.path));
  return w;
}

static void end(const world *w) {
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", w->folder.path);
  assert_int_equal(system(command), 0);
}

/* Runs function(rank) in one process for each rank and waits; `status` gets the wait statuses. */
static void run(world *w, int (*function)(world *w, int64_t rank), int status[RANKS_MAX]) {
  pid_t pid[RANKS_MAX];
  fflush(NULL);
  for (int64_t rank = 0; rank < w->ranks; rank++) {
    pid[rank] = fork();
    assert_true(pid[rank] >= 0);
    if (pid[rank]) continue;
    alarm(RANK_HANGS);
    _exit(function(w, rank));
  }
  for (int64_t rank = 0; rank < w->ranks; rank++) assert_int_equal(waitpid(pid[rank], &status[rank], 0), pid[rank]);
}

static void all_hold(world *w, int (*function)(world *w, int64_t rank)) {
  int status[RANKS_MAX];
  run(w, function, status);
  for (int64_t rank = 0; rank < w->ranks; rank++) assert_int_equal(status[rank], 0);
}

/* A check inside a rank: if it fails the rank exits. */
#define HOLDS(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      fprintf(stderr, "%s:%d: %s; \"%s\"\n", __FILE__, __LINE__, #condition, ad_last_error()); \
      return WRONG;                                                                            \
    }                                                                                          \
  } while (0)
#define SAYS(...)                                                                                 \
  do {                                                                                            \
    const char *wrong = says_wrong(ad_last_error(), SAYS_FACTS(__VA_ARGS__), __FILE__, __func__); \
    if (wrong) fprintf(stderr, "%s\n", wrong);                                                    \
    HOLDS(!wrong);                                                                                \
  } while (0)

static ad_status sum(ad_comm *comm, double *value) {
  ad_collective c = {.size = sizeof c, .op = AD_ALL_REDUCE, .in = value, .out = value, .count = 1, .dtype = AD_F64};
  return ad_comm_run(comm, &c);
}

static int sums(ad_comm *comm, int64_t ranks) {
  double value = (double)ad_comm_rank(comm) + 1;
  HOLDS(!sum(comm, &value));
  HOLDS(value == (double)(ranks * (ranks + 1)) / 2);
  return 0;
}

static int joins_and_sums(world *w, int64_t rank) {
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  if (rank == 1) usleep(100000);
  HOLDS(!ad_comm_join(rank, w->ranks, &by, &comm));
  HOLDS(ad_comm_rank(comm) == rank && ad_comm_size(comm) == w->ranks && !strcmp(ad_comm_backend(comm), "shm"));
  HOLDS(!sums(comm, w->ranks));
  ad_comm_close(comm);
  return 0;
}

static int left_in_shared_memory(void) {
  int count = 0;
  DIR *shared = opendir("/dev/shm");
  for (struct dirent *entry; shared && (entry = readdir(shared));) count += strstr(entry->d_name, "addend") != NULL;
  if (shared) closedir(shared);
  return count;
}

static void processes_that_anybody_started_are_a_world(void **state) {
  int before = left_in_shared_memory();
  for (int64_t ranks = 1; ranks <= 5; ranks += 2) {
    world w = begin(ranks);
    all_hold(&w, joins_and_sums);
    end(&w);
  }
  assert_int_equal(left_in_shared_memory(), before);
}

/* ---- deaths ---- */

static int loses_the_last(world *w, int64_t rank) {
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  double value = 1;
  HOLDS(!ad_comm_join(rank, w->ranks, &by, &comm));
  HOLDS(!sum(comm, &value));
  if (rank == w->ranks - 1) raise(SIGKILL);
  HOLDS(sum(comm, &value) == AD_RANK_DIED);
  SAYS("rank 2");
  HOLDS(sum(comm, &value) == AD_RANK_DIED);
  ad_comm_close(comm);
  return 0;
}

/* The dead rank is a zombie until its parent, the test, waits for it, so kill() still finds its pid. */
static void who_waits_for_a_dead_rank_is_reported(void **state) {
  int status[RANKS_MAX];
  world w = begin(3);
  run(&w, loses_the_last, status);
  assert_int_equal(status[0], 0);
  assert_int_equal(status[1], 0);
  assert_true(WIFSIGNALED(status[2]));
  end(&w);
}

/* The last of two ranks dies or leaves; the other one only tests its posted call and never waits. */
typedef struct polling {
  world world; /* must be first: ranks get a pointer to it */
  int leaves, receives;
} polling;

static ad_status test_until_it_ends(ad_comm *comm, int receives) {
  double value = 1;
  int done = 0;
  ad_request request;
  ad_collective sum = {.size = sizeof sum, .in = &value, .out = &value, .count = 1, .dtype = AD_F64};
  ad_transfer receive = {
      .size = sizeof receive, .peer = 1, .receive = &value, .receives = 1, .count = 1, .dtype = AD_F64};
  AD_TRY(receives ? ad_comm_post_transfer(comm, &receive, &request) : ad_comm_post(comm, &sum, &request));
  for (int turns = 0; turns < 10000 && !done; turns++) {
    AD_TRY(ad_comm_test(comm, &request, &done));
    usleep(500);
  }
  return AD_OK;
}

static int loses_the_last_while_it_tests(world *w, int64_t rank) {
  const polling *how = (const polling *)w;
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  HOLDS(!ad_comm_join(rank, w->ranks, &by, &comm));
  if (rank && !how->leaves) raise(SIGKILL);
  if (!rank) HOLDS(test_until_it_ends(comm, how->receives) == (how->leaves ? AD_RANK_LEFT : AD_RANK_DIED));
  ad_comm_close(comm);
  return 0;
}

static void who_tests_is_reported_too(void **state) {
  for (int i = 0; i < 4; i++) {
    int status[RANKS_MAX];
    polling how = {begin(2), i & 1, i >> 1};
    run(&how.world, loses_the_last_while_it_tests, status);
    assert_int_equal(status[0], 0);
    end(&how.world);
  }
}

/* A rank dies after the second meeting, which opens the shared memory, and before it maps it. With two gets it finds
 * the world, and its fifth belongs to the last meeting. */
enum { GETS = 5 };
static int loses_one_that_has_not_joined(world *w, int64_t rank) {
  w->folder.dies_at = rank == 2 ? GETS : 0;
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  HOLDS(ad_comm_join(rank, w->ranks, &by, &comm) == AD_RANK_DIED);
  SAYS("rank 2");
  return 0;
}

static void one_that_dies_before_it_joined_is_reported(void **state) {
  int status[RANKS_MAX];
  world w = begin(3);
  run(&w, loses_one_that_has_not_joined, status);
  assert_int_equal(status[0], 0);
  assert_int_equal(status[1], 0);
  assert_true(WIFSIGNALED(status[2]));
  end(&w);
}

/* ---- worlds one after another in one store ---- */

/* Rank 0 comes last, so that the others first see what the world before has left. */
static int joins_after_an_older_world(world *w, int64_t rank) {
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  if (!rank) usleep(150000);
  HOLDS(!ad_comm_join(rank, w->ranks, &by, &comm));
  HOLDS(ad_comm_size(comm) == w->ranks);
  HOLDS(!sums(comm, w->ranks));
  ad_comm_close(comm);
  return 0;
}

/* The last rank kills itself at one of its gets, and the others give up or get its error. */
static int dies_while_it_joins(world *w, int64_t rank) {
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  by.seconds = 1;
  if (rank < w->ranks - 1) w->folder.dies_at = 0;
  ((folder *)by.context)->gets = 0;
  HOLDS(ad_comm_join(rank, w->ranks, &by, &comm));
  return 0;
}

static void a_store_serves_one_world_after_another(void **state) {
  const int64_t sizes[] = {3, 3, 2, 4, 3};
  world w = begin(3);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    w.ranks = sizes[i];
    all_hold(&w, joins_after_an_older_world);
  }
  end(&w);
}

static void what_a_world_that_died_left_is_not_taken(void **state) {
  world w = begin(3);
  int status[RANKS_MAX];
  for (int dies_at = 1; dies_at <= GETS; dies_at++) {
    w.folder.dies_at = dies_at;
    run(&w, dies_while_it_joins, status);
    assert_true(WIFSIGNALED(status[2]));
    w.folder.dies_at = 0;
    all_hold(&w, joins_after_an_older_world);
  }
  end(&w);
}

/* One process leaves its world and joins again through the same store. */
static int joins_again_and_again(world *w, int64_t rank) {
  for (int i = 0; i < 4; i++)
    if (joins_after_an_older_world(w, (rank + i) % w->ranks)) return WRONG;
  return 0;
}

static void who_left_joins_again_under_any_rank(void **state) {
  world w = begin(3);
  all_hold(&w, joins_again_and_again);
  end(&w);
}

/* One of three ranks kills itself, in a call or between two calls, with small and large values, in its own memory or
 * the world's. */
typedef struct killing {
  world world; /* must be first: ranks get a pointer to it */
  uint64_t number;
} killing;
enum { CALLS = 40, LARGE = 100000, KILLINGS = 24 };

static ad_status call_on(ad_comm *comm, double *values, size_t count, int is_posted, int dies) {
  ad_collective c = {
      .size = sizeof c, .op = AD_ALL_REDUCE, .in = values, .out = values, .count = count, .dtype = AD_F64};
  ad_request request;
  if (!is_posted) return dies ? (raise(SIGKILL), AD_OK) : ad_comm_run(comm, &c);
  ad_status status = ad_comm_post(comm, &c, &request);
  if (dies) raise(SIGKILL);
  return status ? status : ad_comm_wait(comm, &request);
}

static int works_until_one_is_killed(world *w, int64_t rank) {
  static double own[LARGE];
  uint64_t number = ((const killing *)w)->number;
  int64_t victim = ad_random_below(7, 0, number, 3), last = 1 + ad_random_below(7, 1, number, CALLS - 1);
  ad_rendezvous by = in_folder(&w->folder);
  ad_status status = AD_OK;
  void *shared;
  ad_comm *comm;
  HOLDS(!ad_comm_join(rank, w->ranks, &by, &comm));
  HOLDS(!ad_comm_alloc(comm, sizeof own, &shared));
  for (int64_t i = 0; !status; i++) {
    uint64_t at = number * CALLS + (uint64_t)i;
    size_t count = ad_random_below(7, 2, at, 2) ? 5 : LARGE;
    status = call_on(comm, ad_random_below(7, 3, at, 2) ? own : shared, count, (int)ad_random_below(7, 4, at, 2),
                     rank == victim && i == last);
  }
  HOLDS(status == AD_RANK_DIED && rank != victim);
  HOLDS(ad_comm_health(comm) == AD_RANK_DIED);
  ad_comm_close(comm);
  return 0;
}

static void no_death_hangs_or_goes_unnoticed(void **state) {
  for (uint64_t i = 0; i < KILLINGS; i++) {
    int status[RANKS_MAX], killed = 0;
    killing k = {begin(3), i};
    run(&k.world, works_until_one_is_killed, status);
    for (int rank = 0; rank < 3; rank++) {
      killed += WIFSIGNALED(status[rank]) && WTERMSIG(status[rank]) == SIGKILL;
      if (!WIFSIGNALED(status[rank])) assert_int_equal(status[rank], 0);
    }
    assert_int_equal(killed, 1);
    end(&k.world);
  }
}

/* A rank that leaves after its last call is not reported as dead, and its earlier calls count. */
static int leaves_early(world *w, int64_t rank) {
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  double value = 1;
  HOLDS(!ad_comm_join(rank, w->ranks, &by, &comm));
  HOLDS(!sum(comm, &value));
  if (rank) {
    usleep(300000);
    HOLDS(sum(comm, &value) == AD_RANK_LEFT);
  }
  ad_comm_close(comm);
  return 0;
}

static void leaving_is_no_death(void **state) {
  world w = begin(2);
  all_hold(&w, leaves_early);
  end(&w);
}

/* ---- ranks that cannot join ---- */

static int is_elsewhere(world *w, int64_t rank) {
  ad_rendezvous by = in_folder(&w->folder);
  ad_comm *comm;
  if (rank == 1) setenv("ADDEND_NODE", "another", 1);
  HOLDS(ad_comm_join(rank, w->ranks, &by, &comm) == AD_INVALID);
  SAYS("rank 1", "rank 0");
  return 0;
}

static void a_rank_on_another_host_is_named_on_all(void **state) {
  world w = begin(3);
  all_hold(&w, is_elsewhere);
  end(&w);
}

static void what_cannot_be_joined_is_refused(void **state) {
  folder f = {.path = "/tmp"};
  ad_comm *comm;
  ad_rendezvous by = in_folder(&f), other;
  const struct {
    int64_t rank, size;
    const char *facts[4];
  } places[] = {{3, 3, {"rank 3", "3 ranks"}},
                {-1, 3, {"rank -1", "3 ranks"}},
                {0, 0, {"0 ranks"}},
                {0, 513, {"513 ranks", "512"}}};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    assert_int_equal(ad_comm_join(places[i].rank, places[i].size, &by, &comm), AD_INVALID);
    assert_says_all(places[i].facts);
  }
  other = by, other.wait = NULL;
  assert_int_equal(ad_comm_join(0, 2, &other, &comm), AD_INVALID);
  assert_says("wait");
  other = by, other.seconds = -1;
  assert_int_equal(ad_comm_join(0, 2, &other, &comm), AD_INVALID);
  other = by, other.size = 0;
  assert_int_equal(ad_comm_join(0, 2, &other, &comm), AD_INVALID);
  assert_int_equal(ad_comm_join(0, 2, NULL, &comm), AD_INVALID);
  assert_int_equal(ad_comm_join(0, 2, &by, NULL), AD_INVALID);
}

static void who_does_not_come_is_named(void **state) {
  world w = begin(2);
  ad_comm *comm;
  ad_rendezvous by = in_folder(&w.folder);
  by.seconds = 1;
  assert_int_equal(ad_comm_join(0, 2, &by, &comm), AD_SYSTEM);
  assert_says("rank 1", "addend/");
  assert_int_equal(ad_comm_join(1, 2, &by, &comm), AD_SYSTEM);
  assert_says("rank 0");
  assert_int_equal(ad_comm_join(1, 3, &by, &comm), AD_SYSTEM);
  assert_says("rank 0");
  assert_says("2", "3");
  end(&w);
  assert_int_equal(ad_comm_join(0, 2, &by, &comm), AD_IO);
  assert_says("addend/world");
}

/* ---- torchrun ---- */

static void set(const char *name, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%lld", (long long)value);
  setenv(name, text, 1);
}

static void as_torchrun(const world *w, int64_t rank) {
  set("RANK", rank);
  set("WORLD_SIZE", w->ranks);
  set("LOCAL_WORLD_SIZE", w->ranks);
  set("MASTER_PORT", getppid());
  setenv("TORCHELASTIC_RUN_ID", w->folder.path, 1);
}

/* File descriptor 0 is nobody's socket: a world that closes leaves it open. */
static int joins_torchruns_world(world *w, int64_t rank) {
  as_torchrun(w, rank);
  HOLDS(dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), 0) == 0);
  HOLDS(ad_comm_launched());
  for (int i = 0; i < 3; i++) {
    ad_comm *comm;
    if (!rank && i == 1) usleep(50000);
    HOLDS(!ad_comm_open(&comm));
    HOLDS(ad_comm_rank(comm) == rank && ad_comm_size(comm) == w->ranks);
    HOLDS(!sums(comm, w->ranks));
    ad_comm_close(comm);
    HOLDS(fcntl(0, F_GETFD) >= 0);
  }
  return 0;
}

static void torchruns_world_is_joined_and_joined_again(void **state) {
  world w = begin(4);
  all_hold(&w, joins_torchruns_world);
  end(&w);
}

static int is_one_of_two_hosts(world *w, int64_t rank) {
  ad_comm *comm;
  as_torchrun(w, rank);
  set("LOCAL_WORLD_SIZE", 1);
  HOLDS(ad_comm_open(&comm) == AD_INVALID);
  SAYS("2 ranks", "1");
  return 0;
}

static int has_anothers_number(world *w, int64_t rank) {
  ad_comm *comm;
  as_torchrun(w, rank ? 1 : 0);
  ad_status status = ad_comm_open(&comm);
  HOLDS(status);
  if (!rank)
    SAYS("rank 1", "3 ranks");
  else /* how the connection ended differs from run to run */
    HOLDS(!says_missing(ad_last_error(), SAYS_FACTS("rank 0")));
  return 0;
}

static void what_torchrun_started_elsewhere_or_twice_is_refused(void **state) {
  world two = begin(2), three = begin(3);
  all_hold(&two, is_one_of_two_hosts);
  all_hold(&three, has_anothers_number);
  end(&two);
  end(&three);
}

static void who_does_not_come_to_the_socket_is_named(void **state) {
  ad_socket_meeting meeting;
  char name[64];
  snprintf(name, sizeof name, "nobody comes to %d", (int)getpid());
  assert_int_equal(ad_sockets_begin(name, 0, 3, 1, &meeting), AD_SYSTEM);
  assert_says("1", "2");
  assert_int_equal(ad_sockets_begin(name, 2, 3, 1, &meeting), AD_SYSTEM);
  assert_says("rank 0", "1");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(processes_that_anybody_started_are_a_world),
      cmocka_unit_test(who_waits_for_a_dead_rank_is_reported),
      cmocka_unit_test(who_tests_is_reported_too),
      cmocka_unit_test(one_that_dies_before_it_joined_is_reported),
      cmocka_unit_test(a_store_serves_one_world_after_another),
      cmocka_unit_test(what_a_world_that_died_left_is_not_taken),
      cmocka_unit_test(who_left_joins_again_under_any_rank),
      cmocka_unit_test(no_death_hangs_or_goes_unnoticed),
      cmocka_unit_test(leaving_is_no_death),
      cmocka_unit_test(a_rank_on_another_host_is_named_on_all),
      cmocka_unit_test(what_cannot_be_joined_is_refused),
      cmocka_unit_test(who_does_not_come_is_named),
      cmocka_unit_test(torchruns_world_is_joined_and_joined_again),
      cmocka_unit_test(what_torchrun_started_elsewhere_or_twice_is_refused),
      cmocka_unit_test(who_does_not_come_to_the_socket_is_named),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
