/* Locks a folder with flock(2): the kernel releases the lock when no process has the lock file open any more. */
#include "files/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"

enum { TRIES = 40, NAP_NANOSECONDS = 50000000, HOLDER_SIZE = 160, HOST_SIZE = 65 };

static int try_to_lock(int file) {
  const struct timespec nap = {.tv_nsec = NAP_NANOSECONDS};
  for (int i = 0; i < TRIES; i++) {
    if (!flock(file, LOCK_EX | LOCK_NB)) return 0;
    if (errno != EWOULDBLOCK && errno != EINTR) return errno;
    nanosleep(&nap, NULL);
  }
  return EWOULDBLOCK;
}

/* Writes into the lock file which process holds the lock, for the message of a process that is refused. May fail
 * without harm. */
static void write_holder(int file) {
  char host[HOST_SIZE] = "", holder[HOLDER_SIZE];
  gethostname(host, sizeof host - 1);
  int length = snprintf(holder, sizeof holder, "process %lld on %s", (long long)getpid(), host);
  if (!ftruncate(file, 0) && pwrite(file, holder, (size_t)length, 0) < 0) errno = 0;
}

static ad_status report_who_holds(int file, const char *folder) {
  char holder[HOLDER_SIZE] = "";
  ssize_t length = pread(file, holder, sizeof holder - 1, 0);
  holder[length < 0 ? 0 : length] = 0;
  return ad_fail(
      AD_IO,
      "%s: another run (%s) writes to this folder; wait until that run has ended, or set another folder with --out",
      folder, *holder ? holder : "its process is not known");
}

/* Locks the open file, or closes it if that fails. If the file system has no locks, warns and succeeds without a
 * lock. */
static ad_status lock_file(int file, const char *folder, int *out) {
  int reason = try_to_lock(file);
  if (reason == EWOULDBLOCK) {
    ad_status status = report_who_holds(file, folder);
    close(file);
    return status;
  }
  if (reason) {
    ad_log(
        AD_LOG_WARNING,
        "%s: the folder cannot be locked (%s), so addend would not notice a second run that writes there; start only "
        "one run",
        folder, strerror(reason));
    close(file);
    return AD_OK;
  }
  write_holder(file);
  *out = file;
  return AD_OK;
}

static ad_status report_why_not(const char *path) {
  if (errno == ELOOP)
    return ad_fail(AD_IO, "%s: the path is a symbolic link, which addend does not follow here; remove the link", path);
  return ad_fail(AD_IO, "%s: the path cannot be opened (%s); check its permissions", path, strerror(errno));
}

ad_status ad_lock_take(const char *folder, int *out) {
  char *path;
  *out = AD_LOCK_NONE;
  AD_TRY(ad_path_in(folder, ".lock", &path));
  int file = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0666);
  ad_status status = file < 0 ? report_why_not(path) : AD_OK;
  ad_release(path);
  return status ? status : lock_file(file, folder, out);
}

void ad_lock_give(int lock) {
  if (lock != AD_LOCK_NONE) close(lock);
}
