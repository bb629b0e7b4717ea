/* Starts a test's ranks and reports their failures in the test. */
#include "ranks.h"

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/clock.h"

#if defined(AD_SANITIZED_ADDRESS)
int __lsan_do_recoverable_leak_check(void);
static int leaks(void) { return __lsan_do_recoverable_leak_check(); }
#else
static int leaks(void) { return 0; }
#endif

void rank_leaks_check(void) {
  if (leaks()) rank_check_failed("ranks.c", __LINE__, "the rank freed all its memory");
}

enum { WORDS = 4096, EXIT_CHECK = 70, RED_ZONE = 64 };

/* Memory shared by ranks and test: the first failure's message. */
typedef struct report {
  int failures;
  char words[WORDS];
} report;

static report *shared;
static int64_t this_rank = -1;

void rank_check_failed(const char *file, int line, const char *words) {
  fprintf(stderr, "rank %d: %s:%d: %s (last error: %s)\n", (int)this_rank, file, line, words, ad_last_error());
  if (shared && !__atomic_fetch_add(&shared->failures, 1, __ATOMIC_SEQ_CST))
    snprintf(shared->words, WORDS, "rank %d: %s:%d: %s (last error: %s)", (int)this_rank, file, line, words,
             ad_last_error());
  fflush(NULL);
  _exit(EXIT_CHECK);
}

void rank_check_status(ad_status status, ad_status expected, const char *file, int line, const char *words) {
  char text[512];
  if (status == expected) return;
  snprintf(text, sizeof text, "%s is %s, expected %s", words, ad_status_name(status), ad_status_name(expected));
  rank_check_failed(file, line, text);
}

void rank_check_says(const char *wrong, const char *file, int line) {
  if (wrong) rank_check_failed(file, line, wrong);
}

typedef struct task {
  int (*function)(ad_comm *comm, void *context);
  void *context;
} task;

static int run_task(ad_comm *comm, void *context) {
  const task *t = context;
  this_rank = ad_comm_rank(comm);
  int status = t->function(comm, t->context);
  if (status) rank_check_failed("ranks.c", __LINE__, "the rank's function returned 0");
  rank_leaks_check();
  return 0;
}

/* ---- on backend mpi: the launcher starts this program again, and each rank comes to the same run_ranks ---- */

static int calls_so_far;

// With ADDEND_TEST_NODES=2 the ranks count as two nodes.
static void choose_node(int64_t ranks) {
  const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *nodes = getenv("ADDEND_TEST_NODES");
  if (!rank) rank = getenv("PMI_RANK");
  if (nodes && rank && !strcmp(nodes, "2")) setenv("ADDEND_NODE", 2 * atol(rank) < ranks ? "first" : "second", 1);
}

static void be_rank(int64_t ranks, task *t) {
  ad_comm *comm;
  choose_node(ranks);
  CHECK_OK(ad_comm_open(&comm));
  CHECK(ad_comm_size(comm) == ranks);
  run_task(comm, t);
  ad_comm_close(comm);
  rank_leaks_check();
  fflush(NULL);
  _exit(0);
}

// Starts the ranks: ADDEND_TEST_MPIRUN ("mpirun.mpich", perhaps with options) comes before the number of ranks.
static void start_with(const char *launcher, int64_t ranks, const char *file, int line) {
  char program[1024], command[4096];
  ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
  if (length < 0) fail_msg("/proc/self/exe cannot be read");
  program[length] = 0;
  snprintf(command, sizeof command, "ADDEND_TEST_CALL=%d %s -n %d '%s' >/dev/null", calls_so_far, launcher, (int)ranks,
           program);
  int status = system(command);
  if (!status) return;
  print_error("%s:%d: on %d ranks of \"%s\": status %d\n", file, line, (int)ranks, launcher, status);
  exit(1);  // the rank ends here, since it would count later calls of run_ranks differently
}

// Returns 1 if the ranks ran, or if this rank has no part in this call; 0 if no launcher is given.
static int run_on_mpi(int64_t ranks, task *t, const char *file, int line) {
  const char *launcher = getenv("ADDEND_TEST_MPIRUN"), *call = getenv("ADDEND_TEST_CALL");
  calls_so_far++;
  if (!launcher) return 0;
  if (!call)
    start_with(launcher, ranks, file, line);
  else if (atoi(call) == calls_so_far)
    be_rank(ranks, t);
  return 1;
}

void run_ranks_at(int64_t ranks, int (*function)(ad_comm *comm, void *context), void *context, const char *file,
                  int line) {
  char words[2 * WORDS] = "";
  task t = {function, context};
  if (run_on_mpi(ranks, &t, file, line)) return;
  ad_launch_options options = {.size = sizeof options, .ranks = ranks, .function = run_task, .context = &t};
  ad_launch_result result = {.size = sizeof result};
  shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail_msg("no memory for the ranks' report");
  ad_status status = ad_launch(&options, &result);
  if (status) snprintf(words, sizeof words, "%s%s%s", shared->words, shared->words[0] ? "\n" : "", ad_last_error());
  munmap(shared, sizeof *shared);
  shared = NULL;
  if (!status) return;
  print_error("%s:%d: on %d ranks: %s\n", file, line, (int)ranks, words);
  _fail(file, line);
}

/* ---- poisoned memory: size, red zone, the caller's bytes, red zone ---- */

static const unsigned char red = 0xa5;

void *rank_memory(size_t bytes) {
  unsigned char *memory = aligned_alloc(RED_ZONE, (bytes + 3 * RED_ZONE) / RED_ZONE * RED_ZONE);
  if (!memory) rank_check_failed("ranks.c", __LINE__, "there is memory");
  memset(memory, red, RED_ZONE);
  memcpy(memory, &bytes, sizeof bytes);
  memset(memory + RED_ZONE, 0xff, bytes);
  memset(memory + RED_ZONE + bytes, red, (bytes + 3 * RED_ZONE) / RED_ZONE * RED_ZONE - RED_ZONE - bytes);
  return memory + RED_ZONE;
}

static int all_red(const unsigned char *bytes, const unsigned char *end) {
  for (; bytes < end; bytes++)
    if (*bytes != red) return 0;
  return 1;
}

void rank_memory_check(const void *memory) {
  const unsigned char *start = (const unsigned char *)memory - RED_ZONE;
  size_t bytes;
  memcpy(&bytes, start, sizeof bytes);
  const unsigned char *end = start + (bytes + 3 * RED_ZONE) / RED_ZONE * RED_ZONE;
  if (!all_red(start + sizeof bytes, start + RED_ZONE) || !all_red(start + RED_ZONE + bytes, end))
    rank_check_failed("ranks.c", __LINE__, "nothing was written outside the rank's memory");
}

void rank_memory_free(void *memory) {
  if (!memory) return;
  rank_memory_check(memory);
  free((unsigned char *)memory - RED_ZONE);
}

double rank_seconds(void) { return ad_seconds(); }
