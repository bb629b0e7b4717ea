/* Finds out whether this process must not start or join ranks, because of another launcher's world or because it has
 * other threads. */
#include "comm/foreign.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/text.h"

/* A launcher whose world addend cannot join. It is recognised by a variable in a rank's environment: the number of
 * ranks or, if the launcher does not set that, the rank. */
typedef struct foreign {
  const char *rank, *ranks;  // names of environment variables; ranks NULL: the launcher sets none
  const char *words;         // the launcher's name in messages
  const char *missing;       // why addend cannot join its world, for the message; NULL: addend has no code for it yet
} foreign;

static const foreign launchers[] = {
    {"RANK", "WORLD_SIZE", "torchrun or a launcher like it",
     " without LOCAL_WORLD_SIZE and MASTER_PORT, which torchrun leaves there too"},
    {"HOROVOD_RANK", "HOROVOD_SIZE", "horovodrun", NULL},
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "flux run", NULL},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MVAPICH2's mpirun_rsh", NULL},
    {"PALS_RANKID", NULL, "PALS (HPE's mpiexec and aprun)", NULL},
    {"PMIX_RANK", NULL, "a launcher that speaks PMIx", NULL},
};

// Fails with a message that names the launcher that started this process, the variables that show it, and another way
// to start the ranks.
static ad_status refuse_launcher(const foreign *launcher) {
  char found[128] = "";
  ad_text text = ad_text_on(found, sizeof found);
  const char *rank = getenv(launcher->rank), *ranks = launcher->ranks ? getenv(launcher->ranks) : NULL;
  if (rank) ad_text_add(&text, "%s=%.12s", launcher->rank, rank);
  if (ranks) ad_text_add(&text, "%s%s=%.12s", rank ? " and " : "", launcher->ranks, ranks);
  return ad_fail(AD_INVALID,
                 "%s started this process as one of its ranks (%s in the environment), but addend cannot join such a "
                 "world%s, and each process would train alone. Start the program once with `addend run -n %.12s -- "
                 "PROGRAM` (`addend train` starts its ranks itself), or start it with mpirun or srun; if the variables "
                 "were left by another program, type `unset %s%s%s` first",
                 launcher->words, found, launcher->missing ? launcher->missing : " yet", ranks ? ranks : "N",
                 launcher->rank, ranks ? " " : "", ranks ? launcher->ranks : "");
}

// Returns 1 if the launcher started this process as one of several ranks.
static int has_started_this(const foreign *launcher) {
  if (!launcher->ranks) return getenv(launcher->rank) != NULL;
  const char *ranks = getenv(launcher->ranks);
  return ranks && atol(ranks) > 1;
}

ad_status ad_foreign_check(void) {
  for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
    if (has_started_this(&launchers[i])) return refuse_launcher(&launchers[i]);
  return AD_OK;
}

static int count_threads(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/task");
  if (!folder) return 1;  // without /proc the number is unknown; 1 lets the launch continue
  for (struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

// Returns the number of threads that would exist at a fork. Some libraries (OpenBLAS) end their threads before a fork
// and start them again when needed. So this function forks once, with a child that ends immediately, and then counts
// the threads that are left. A thread that has ended may still be listed for a moment.
static int threads_at_fork(void) {
  const struct timespec millisecond = {.tv_nsec = 1000000};
  int count = count_threads();
  if (count == 1) return count;
  pid_t probe = fork();
  if (!probe) _exit(0);
  if (probe > 0) waitpid(probe, NULL, 0);
  for (int i = 0; i < 100 && (count = count_threads()) > 1; i++) nanosleep(&millisecond, NULL);
  return count;
}

#if defined(AD_SANITIZED) && !defined(AD_SANITIZED_ADDRESS)
enum { THREADS_BESIDE = 1 };  // the thread sanitizer has a thread of its own
#else
enum { THREADS_BESIDE = 0 };
#endif

ad_status ad_threads_check(void) {
  int threads = threads_at_fork();
  if (threads <= 1 + THREADS_BESIDE) return AD_OK;
  return ad_fail(AD_INVALID,
                 "ad_launch cannot fork ranks from a process with %d threads (PyTorch and OpenMP start some), because "
                 "a rank could hang on a lock that another thread holds. Use `addend run`, which starts each rank as a "
                 "separate program, or call ad_launch before any thread starts, or set `argv` instead of `function`",
                 threads);
}
