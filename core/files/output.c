/* Writes files with a checksum, waits until they are on disk, and verifies them. */
#include "files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "addend/safetensors.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/unfinished.h"

enum { READ_AT_ONCE = 1 << 20 };
static const size_t written_at_once = (size_t)1 << 24;

struct ad_output {
  int file;
  char *path, *unfinished; /* unfinished: the temporary name; NULL if there is no file with this name */
  int64_t bytes;
  XXH64_state_t *hash;
};

static ad_status cannot_write(const ad_output *output) {
  return ad_fail(AD_IO, "%s: the path cannot be written (%s); check the path and the space on the disk", output->path,
                 strerror(errno));
}

/* Opens a file with a temporary name, and starts its checksum. */
static ad_status open_file(const char *path, ad_output *output) {
  AD_TRY(ad_copy_string(path, &output->path));
  output->hash = XXH64_createState();
  if (!output->hash) return ad_fail(AD_MEMORY, "no memory for the checksum of %s", path);
  XXH64_reset(output->hash, 0);
  char *unfinished;
  AD_TRY(ad_unfinished_path(path, &unfinished));
  output->file = open(unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (output->file >= 0) return output->unfinished = unfinished, AD_OK;
  ad_status status = cannot_write(output);
  ad_release(unfinished);
  return status;
}

ad_status ad_output_open(const char *path, ad_output **out) {
  ad_output *output;
  AD_TRY(ad_new(1, &output));
  output->file = -1;
  ad_status status = open_file(path, output);
  if (status) {
    ad_output_close(output);
    return status;
  }
  *out = output;
  return AD_OK;
}

ad_status ad_output_write(ad_output *output, const void *data, size_t bytes) {
  const char *at = data;
  XXH64_update(output->hash, data, bytes);
  for (size_t done = 0; done < bytes;) {
    size_t left = bytes - done;
    ssize_t n = write(output->file, at + done, left < written_at_once ? left : written_at_once);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return cannot_write(output);
    done += (size_t)n;
  }
  output->bytes += (int64_t)bytes;
  return AD_OK;
}

ad_status ad_output_sync(ad_output *output, ad_file_sum *out) {
  if (fsync(output->file)) return cannot_write(output);
  int failed = close(output->file);
  output->file = -1;
  ad_status status = ad_unfinished_end(output->unfinished, output->path, failed ? cannot_write(output) : AD_OK);
  ad_release(output->unfinished);
  output->unfinished = NULL;
  if (status) return status;
  if (out) *out = (ad_file_sum){output->bytes, XXH64_digest(output->hash)};
  return AD_OK;
}

void ad_output_close(ad_output *output) {
  if (!output) return;
  if (output->file >= 0) close(output->file);
  if (output->unfinished) unlink(output->unfinished);
  ad_release(output->unfinished);
  XXH64_freeState(output->hash);
  ad_release(output->path);
  ad_release(output);
}

uint64_t ad_checksum(const void *data, size_t bytes, uint64_t seed) { return XXH64(data, data ? bytes : 0, seed); }

/* ---- verifying a file ---- */

static ad_status hash_file(int file, const char *path, XXH64_state_t *hash, char *buffer) {
  XXH64_reset(hash, 0);
  for (;;) {
    ssize_t n = read(file, buffer, READ_AT_ONCE);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                     strerror(errno));
    if (n == 0) return AD_OK;
    XXH64_update(hash, buffer, (size_t)n);
  }
}

static ad_status check_size(int file, const char *path, int64_t bytes) {
  struct stat found;
  if (fstat(file, &found))
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  if (found.st_size == bytes && S_ISREG(found.st_mode)) return AD_OK;
  return ad_fail(AD_IO,
                 "%s: the file has %lld bytes, but was written with %lld bytes, so the file was changed since; use an "
                 "unchanged copy",
                 path, (long long)found.st_size, (long long)bytes);
}

static ad_status check_hash(int file, const char *path, uint64_t expected, XXH64_state_t *hash) {
  char *buffer;
  if (!hash) return ad_fail(AD_MEMORY, "no memory for the checksum of %s", path);
  AD_TRY(ad_new(READ_AT_ONCE, &buffer));
  ad_status status = hash_file(file, path, hash, buffer);
  ad_release(buffer);
  if (status || XXH64_digest(hash) == expected) return status;
  return ad_fail(
      AD_IO,
      "%s: the file has checksum %016llx, but was written with checksum %016llx, so the file was changed since; use "
      "an unchanged copy",
      path, (unsigned long long)XXH64_digest(hash), (unsigned long long)expected);
}

ad_status ad_file_verify(const char *path, const ad_file_sum *expected) {
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    return ad_fail(AD_IO, "%s: the path cannot be read (%s); check the path and its permissions", path,
                   strerror(errno));
  XXH64_state_t *hash = XXH64_createState();
  ad_status status = check_size(file, path, expected->bytes);
  if (!status) status = check_hash(file, path, expected->checksum, hash);
  XXH64_freeState(hash);
  close(file);
  return status;
}
