/* Makes temporary names, and writes files under such names. Callers decide what is written. */
#include "base/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/error.h"
#include "base/memory.h"

long long ad_token_bits(void) {
  long long bits = 0;
  if (getrandom(&bits, sizeof bits, GRND_NONBLOCK) == sizeof bits && bits) return bits;
  // A machine that has just started has no random bits yet. The bits used then are unique, but they might be guessed.
  return (long long)ad_now() << 2 ^ (long long)getpid() << 40 ^ 1;
}

void ad_token_print(long long bits, char token[AD_TOKEN_SIZE]) {
  snprintf(token, AD_TOKEN_SIZE, "%016llx", (unsigned long long)bits);
}

static int leads_into_proc(const char *path) {
  char target[sizeof "/proc/"];
  ssize_t length = readlink(path, target, sizeof target);
  return length >= (ssize_t)strlen("/proc/") && !memcmp(target, "/proc/", strlen("/proc/"));
}

ad_status ad_unfinished_check(const char *path) {
  struct stat found;
  if (stat(path, &found) || (S_ISREG(found.st_mode) && !leads_into_proc(path))) return AD_OK;
  if (S_ISDIR(found.st_mode))
    return ad_fail(AD_IO, "%s: the path cannot be written (%s); name a file, not a folder", path, strerror(EISDIR));
  return ad_fail(AD_IO,
                 "%s: the path cannot be written, because it is not a regular file and addend replaces only regular "
                 "files; name another file",
                 path);
}

ad_status ad_unfinished_path(const char *path, char **out) {
  char token[AD_TOKEN_SIZE], *made;
  AD_TRY(ad_unfinished_check(path));
  size_t size = strlen(path) + sizeof token + sizeof "..tmp";
  AD_TRY(ad_new(size, &made));
  ad_token_print(ad_token_bits(), token);
  snprintf(made, size, "%s.%s.tmp", path, token);
  *out = made;
  return AD_OK;
}

ad_status ad_unfinished_end(const char *unfinished, const char *path, ad_status written) {
  ad_status status = written;
  if (!status && rename(unfinished, path))
    status =
        ad_fail(AD_IO, "%s: the finished file cannot be renamed to this name (%s); check the permissions of its folder",
                path, strerror(errno));
  if (status) unlink(unfinished);
  return status;
}

typedef struct filling {
  const char *path; /* path of the finished file */
  ad_status (*write)(FILE *file, void *context);
  void *context;
  int keeps;
  FILE *kept;
} filling;

static ad_status cannot_write(const filling *f, int reason) {
  return ad_fail(AD_IO, "%s: the path cannot be written (%s); check the path and the space on the disk", f->path,
                 strerror(reason));
}

static ad_status write_content(const filling *f, FILE *file) {
  AD_TRY(f->write(file, f->context));
  return fflush(file) || ferror(file) ? cannot_write(f, errno) : AD_OK;
}

static ad_status write_unfinished(filling *f, const char *unfinished) {
  FILE *file = fopen(unfinished, "wxe");
  if (!file) return cannot_write(f, errno);
  ad_status status = write_content(f, file);
  if (!status && f->keeps) return f->kept = file, AD_OK;
  if (fclose(file) && !status) status = cannot_write(f, errno);
  return status;
}

ad_status ad_unfinished_write(const char *path, ad_status (*write)(FILE *file, void *context), void *context,
                              FILE **keep) {
  filling f = {.path = path, .write = write, .context = context, .keeps = keep != NULL};
  char *unfinished;
  AD_TRY(ad_unfinished_path(path, &unfinished));
  ad_status status = ad_unfinished_end(unfinished, path, write_unfinished(&f, unfinished));
  ad_release(unfinished);
  if (!status && keep) *keep = f.kept;
  if (status && f.kept) fclose(f.kept);
  return status;
}

int ad_is_unfinished(const char *entry, const char *name) {
  size_t length = strlen(name), digits = AD_TOKEN_SIZE - 1;
  if (strncmp(entry, name, length) != 0 || entry[length] != '.') return 0;
  const char *token = entry + length + 1;
  return strspn(token, "0123456789abcdef") == digits && !strcmp(token + digits, ".tmp");
}

static int is_one_of(const char *entry, const char *const *names, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (ad_is_unfinished(entry, names[i])) return 1;
  return 0;
}

ad_status ad_unfinished_remove(const char *path, const char *const *names, size_t count) {
  ad_status status = AD_OK;
  int file = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  // the path is a link or no folder: nothing is removed through a link
  if (file < 0 && (errno == ELOOP || errno == ENOTDIR)) return AD_OK;
  DIR *folder = file < 0 ? NULL : fdopendir(file);
  if (!folder)
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
    if (is_one_of(entry->d_name, names, count) && unlinkat(dirfd(folder), entry->d_name, 0) && errno != ENOENT)
      status = ad_fail(AD_IO, "%s/%s: the path cannot be removed (%s); check the permissions of the folder", path,
                       entry->d_name, strerror(errno));
  }
  closedir(folder);
  return status;
}
