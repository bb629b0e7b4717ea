/* Tests that missing memory and threads for the math libraries are found before those libraries fail on it, in a
 * process that has low limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cblas.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "says.h"
#include "products/blas.h"
#include "base/memory.h"

static int prints_nothing(const char *wrong) {
  if (wrong) print_error("%s\n", wrong);
  return !wrong;
}

/* Whether the last message has the facts; its sentence is in the list of the case. */
static int is_reported(const char *name, ad_status status, const char *const *facts) {
  return status == AD_MEMORY && prints_nothing(says_wrong(ad_last_error(), facts, __FILE__, name));
}

/* Limits the address space to what the process has and so much more. */
static void allow(rlim_t mebibytes) {
  struct rlimit limit;
  getrlimit(RLIMIT_AS, &limit);
  long pages = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%ld", &pages) != 1) _exit(9);
  fclose(file);
  limit.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (mebibytes << 20);
  if (setrlimit(RLIMIT_AS, &limit)) _exit(9);
}

static void in_a_process(int (*holds)(void)) {
  int wait_status;
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) {
    alarm(60); /* without its memory OpenBLAS would wait forever */
    _exit(holds() ? 0 : 1);
  }
  assert_int_equal(waitpid(child, &wait_status, 0), child);
  assert_int_equal(wait_status, 0);
}

static int with_100_mib(void) {
  allow(100);
  return is_reported("one thread", ad_blas_prepare(1), SAYS_FACTS("OpenBLAS", "128 MiB", "-d"));
}
static void openblas_is_not_left_without_its_memory(void **state) { in_a_process(with_100_mib); }

static int with_200_mib(void) {
  allow(200);
  return is_reported("two threads", ad_blas_prepare(2), SAYS_FACTS("OpenBLAS", "256 MiB", "-d")) &&
         !ad_blas_prepare(1) && !ad_blas_prepare(1);
}
static void each_of_its_threads_counts(void **state) { in_a_process(with_200_mib); }

static int with_20_mib(void) {
  allow(20);
  return is_reported("memory for the test", ad_memory_try("the test", 30), SAYS_FACTS("30 MiB", "-d")) &&
         !ad_memory_try("the test", 10);
}
static void memory_that_cannot_be_had_is_reported_with_who_needs_it(void **state) { in_a_process(with_20_mib); }

/* ---- threads of OpenBLAS ---- */

/* Limits the user's processes and threads; root, for whom the limit does not hold, becomes another user first. The
 * limit also counts what the user runs elsewhere. */
static void allow_processes(rlim_t count) {
  if (!geteuid() && setresuid(47013, 47013, 47013)) _exit(9);
  if (setrlimit(RLIMIT_NPROC, &(struct rlimit){count, count})) _exit(9);
}

/* A product large enough for OpenBLAS to use several threads. */
static void make_product(void) {
  enum { N = 300 };
  static double a[N * N], c[N * N];
  cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, N, N, N, 1, a, N, a, N, 0, c, N);
}

/* If root changed its user, the process itself counts, so one of two threads can be started. */
static int where_processes_are_few(void) {
  allow_processes(geteuid() ? 1 : 2);
  ad_status status = ad_blas_start_threads(3);
  if (!status) make_product();
  /* another user may not read the golden file */
  return status == AD_SYSTEM && prints_nothing(says_missing(ad_last_error(), SAYS_FACTS("3 threads", "-u")));
}
static void threads_that_cannot_be_started_are_reported_and_not_waited_for(void **state) {
  in_a_process(where_processes_are_few);
}

static int where_there_is_room(void) {
  if (ad_blas_start_threads(3) || openblas_get_num_threads() != (openblas_get_parallel() ? 3 : 1)) return 0;
  make_product();
  return !ad_blas_start_threads(1) && openblas_get_num_threads() == 1;
}
static void threads_are_started_where_there_is_room(void **state) { in_a_process(where_there_is_room); }

/* How many threads OpenBLAS says it has, beyond those that it has. */
static int claimed;
int __real_openblas_get_num_threads(void);
int __wrap_openblas_get_num_threads(void);

int __wrap_openblas_get_num_threads(void) { return __real_openblas_get_num_threads() + claimed; }

static int where_one_was_not_started(void) {
  if (openblas_get_parallel() != 1) return 1; /* it has no threads */
  for (claimed = 0; claimed < 2; claimed++) {
    ad_status status = ad_blas_start_threads(2);
    if (status != (claimed ? AD_SYSTEM : AD_OK)) return 0;
    if (claimed && !prints_nothing(says_missing(ad_last_error(), SAYS_FACTS("2 threads", "-u")))) return 0;
  }
  return 1;
}
static void a_thread_that_is_missing_afterwards_is_reported(void **state) { in_a_process(where_one_was_not_started); }

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(openblas_is_not_left_without_its_memory),
      cmocka_unit_test(each_of_its_threads_counts),
      cmocka_unit_test(memory_that_cannot_be_had_is_reported_with_who_needs_it),
      cmocka_unit_test(threads_that_cannot_be_started_are_reported_and_not_waited_for),
      cmocka_unit_test(threads_are_started_where_there_is_room),
      cmocka_unit_test(a_thread_that_is_missing_afterwards_is_reported),
  };
#if defined(AD_SANITIZED) /* sanitizers reserve terabytes of address space */
  return 0;
#endif
  return cmocka_run_group_tests(tests, NULL, NULL);
}
