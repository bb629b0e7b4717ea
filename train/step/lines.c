/* Opens files that have a line for each step, and keeps the lines of an earlier training. */
#include "step/lines.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/unfinished.h"
#include "files/file.h"

static const size_t probe_bytes = 1 << 16;  // about as much as a run writes in its first minute

ad_status ad_cannot_write(const char *path, int reason) {
  return ad_fail(AD_IO, "%s: the path cannot be written (%s); check the path and the space on the disk", path,
                 strerror(reason));
}

/* ---- reading the lines that an earlier training wrote ---- */

typedef struct earlier_lines {
  const char *path; /* path of the file that will be written */
  char *text;
  size_t bytes; /* size of the lines that are kept */
  int64_t lines;
} earlier_lines;

static int is_before(const char *line, size_t length, int64_t first_step) {
  json_t *object = json_loadb(line, length, 0, NULL);
  const json_t *step = json_object_get(object, "step");
  int before = json_is_integer(step) && json_integer_value(step) < first_step;
  json_decref(object);
  return before;
}

// Finds the lines to keep, which are in the order of steps. Stops at a line that was cut off because its writer died.
static void find_lines(earlier_lines *found, int64_t first_step) {
  const char *line = found->text, *end;
  while ((end = strchr(line, '\n')) && is_before(line, (size_t)(end - line), first_step)) {
    line = end + 1;
    found->lines++;
  }
  found->bytes = (size_t)(line - found->text);
}

static ad_status read_earlier(const char *path, int64_t first_step, earlier_lines *out) {
  int64_t size;
  // There is nothing to keep. If the file does not exist, only the checkpoint was kept.
  if (!first_step || access(path, F_OK)) return AD_OK;
  AD_TRY(ad_file_read(path, INT64_MAX - 1, &out->text, &size));
  find_lines(out, first_step);
  return AD_OK;
}

ad_status ad_lines_count(const char *path, int64_t *out) {
  earlier_lines found = {0};
  ad_status status = read_earlier(path, INT64_MAX, &found);
  if (!status) *out = found.lines;
  ad_release(found.text);
  return status;
}

/* ---- opening the file ---- */

// Writes probe_bytes bytes and rewinds, so that a full disk is reported before training and not after it.
ad_status ad_lines_probe(FILE *file, const char *path) {
  for (size_t i = 0; i < probe_bytes; i++) putc('\n', file);
  if (fflush(file) || ferror(file)) return ad_cannot_write(path, errno);
  rewind(file);
  return AD_OK;
}

static ad_status begin_file(FILE *file, void *context) {
  const earlier_lines *found = context;
  AD_TRY(ad_lines_probe(file, found->path));
  if (ftruncate(fileno(file), 0)) return ad_cannot_write(found->path, errno);
  if (found->bytes) fwrite(found->text, 1, found->bytes, file);
  return AD_OK;
}

/* Writes a new file beside the earlier one, which it replaces only when all lines that are kept are in the new file. */
ad_status ad_lines_open(const char *path, int64_t first_step, FILE **out) {
  earlier_lines found = {.path = path};
  AD_TRY(read_earlier(path, first_step, &found));
  ad_status status = ad_unfinished_write(path, begin_file, &found, out);
  ad_release(found.text);
  return status;
}
