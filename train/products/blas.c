/* Allocates OpenBLAS's memory and starts its threads before OpenBLAS itself does, because OpenBLAS would not report a
 * failure. */
#include "products/blas.h"

#include <cblas.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "base/environment.h"
#include "base/error.h"
#include "base/memory.h"

/* The memory that a thread maps at its first product: BUFFER_SIZE in OpenBLAS's common_x86_64.h and common_arm64.h.
 * Only the pages that products touch use physical memory. */
enum { BUFFER_MIB = 128 };

int ad_blas_threads(void) { return (int)ad_environment_number("ADDEND_BLAS_THREADS", 1); }

static _Thread_local int is_prepared;

/* Computes the smallest product for which OpenBLAS allocates its memory. Later products use the same memory. */
static void make_one(void) {
  double one = 1, square = 0;
  cblas_dsyrk(CblasColMajor, CblasUpper, CblasTrans, 1, 1, 1, &one, 1, 0, &square, 1);
}

ad_status ad_blas_prepare(int threads) {
  if (is_prepared) return AD_OK;
  AD_TRY(ad_memory_try("matrix products by OpenBLAS", (size_t)threads * BUFFER_MIB));
  make_one();
  is_prepared = 1;
  return AD_OK;
}

/* ---- starting OpenBLAS's threads ---- */

static ad_status cannot_start(int threads, int reason) {
  return ad_fail(AD_SYSTEM,
                 "the %d threads for matrix products (ADDEND_BLAS_THREADS) cannot be started (%s); set fewer threads, "
                 "or raise ulimit -u",
                 threads, strerror(reason));
}

static int threads_of_process(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/task");
  if (!folder) return -1;
  for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) count += *entry->d_name != '.';
  closedir(folder);
  return count;
}

/* The body of a thread of try_threads: waits until try_threads lets all its threads end. */
static void *wait_to_end(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

/* Waits, at most a second, until the system lists no more than `count` threads. It lists a thread for a moment after
 * the thread was joined, and are_missing must not count such a thread as one of OpenBLAS's. */
static void wait_until_listed(int count) {
  for (int tries = 0; tries < 1000 && threads_of_process() > count; tries++)
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* Returns AD_SYSTEM if this number of threads cannot exist at the same time. OpenBLAS itself would end the process. */
static ad_status try_threads(int threads) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t *started;
  int count = 1, reason = 0, before = threads_of_process();
  AD_TRY(ad_new((size_t)threads, &started));
  pthread_mutex_lock(&gate);
  while (count < threads && !reason) {
    reason = pthread_create(&started[count], NULL, wait_to_end, &gate);
    count += !reason;
  }
  pthread_mutex_unlock(&gate);
  while (--count) pthread_join(started[count], NULL);
  wait_until_listed(before);
  ad_release(started);
  return reason ? cannot_start(threads, reason) : AD_OK;
}

/* Returns 1 if OpenBLAS has fewer threads than it should have. A build without threads needs none. A build with OpenMP
 * starts threads later and reports its own errors. */
static int are_missing(void) {
  int running = threads_of_process();
  return openblas_get_parallel() == OPENBLAS_THREAD && running >= 0 && running < openblas_get_num_threads();
}

/* Starts the threads, and then checks them, because other processes may have started threads since try_threads. */
ad_status ad_blas_start_threads(int threads) {
  if (threads > 1) AD_TRY(try_threads(threads));
  openblas_set_num_threads(threads);
  return are_missing() ? cannot_start(threads, EAGAIN) : AD_OK;
}

/* ---- OpenBLAS's name ---- */

/* Returns the first two words of openblas_get_config(), name and version, and the processor. */
const char *ad_blas_name(void) {
  static _Thread_local char name[96];
  const char *config = openblas_get_config();
  size_t words = strcspn(config, " ");
  if (config[words]) words += 1 + strcspn(config + words + 1, " ");
  snprintf(name, sizeof name, "%.*s %s", (int)words, config, openblas_get_corename());
  return name;
}
