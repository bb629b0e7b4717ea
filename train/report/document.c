/* Reads the files in a run's folder into one document. timeline.c reads the trace. */
#include "report/document.h"

#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "files/json.h"

enum { LINES_MAX = 20000 };
static const int64_t metrics_bytes_max = (int64_t)1 << 34;  // enough for about ten million steps

static ad_status no_memory(const char *folder) { return ad_fail(AD_MEMORY, "no memory for the report of %s", folder); }

/* ---- reading metrics.jsonl ---- */

static size_t count_lines(const char *text) {
  size_t count = 0;
  for (const char *end = text; (end = strchr(end, '\n')); end++) count++;
  return count;
}

/* Returns 1 if a line is kept: every n-th line, the last line, and lines with numbers that are not measured at every
 * step. */
static int is_kept(const json_t *line, size_t number, size_t count, size_t every) {
  return number % every == 0 || number + 1 == count || json_object_get(line, "validation_loss") ||
         json_object_get(line, "pss_all_bytes") || json_object_get(line, "skipped");
}

/* Appends the lines to keep. Stops at a line that is cut off, because its writer is still at work or has died. */
static ad_status take_lines(const char *text, size_t every, json_t *lines) {
  size_t number = 0, count = count_lines(text);
  const char *line = text, *end;
  for (; (end = strchr(line, '\n')); line = end + 1, number++) {
    json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
    int is_good = json_is_object(object);
    int failed = is_good && is_kept(object, number, count, every) && json_array_append(lines, object);
    json_decref(object);
    if (failed) return AD_MEMORY;
    if (!is_good) return AD_OK;
  }
  return AD_OK;
}

static ad_status put_metrics(const char *text, const char *folder, json_t *run) {
  size_t every = count_lines(text) / LINES_MAX + 1;
  json_t *lines = json_array();
  ad_status status = lines ? take_lines(text, every, lines) : AD_MEMORY;
  if (json_object_set_new(run, "metrics", lines) ||
      json_object_set_new(run, "metrics_every", json_integer((json_int_t)every)) || status)
    return no_memory(folder);
  return AD_OK;
}

static ad_status refuse_folder(const char *folder, const char *path) {
  return ad_fail(AD_INVALID,
                 "%s is not the folder of a run, since the file %s does not exist; name a folder that `addend train "
                 "RECIPE` made, which is runs/NAME or the folder of --out",
                 folder, path);
}

static ad_status read_metrics(const char *folder, json_t *run) {
  char *path, *text = NULL;
  int64_t size;
  AD_TRY(ad_path_in(folder, "metrics.jsonl", &path));
  ad_status status =
      access(path, F_OK) ? refuse_folder(folder, path) : ad_file_read(path, metrics_bytes_max, &text, &size);
  if (!status) status = put_metrics(text, folder, run);
  ad_release(text);
  ad_release(path);
  return status;
}

/* ---- reading samples.jsonl ---- */

/* Appends the newest LINES_MAX lines. */
static ad_status take_samples(const char *text, json_t *lines) {
  size_t number = 0, count = count_lines(text);
  const char *line = text, *end;
  for (; (end = strchr(line, '\n')); line = end + 1, number++) {
    if (number + LINES_MAX < count) continue;
    json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
    if (!object) return AD_OK;
    if (json_array_append_new(lines, object)) return AD_MEMORY;
  }
  return AD_OK;
}

static ad_status read_lines(const char *path, const char *folder, json_t *lines) {
  char *text;
  int64_t size;
  if (access(path, F_OK)) return AD_OK;
  AD_TRY(ad_file_read(path, metrics_bytes_max, &text, &size));
  ad_status status = take_samples(text, lines);
  ad_release(text);
  return status ? no_memory(folder) : AD_OK;
}

/* Reads samples.jsonl, which a run without prompts does not have. */
static ad_status read_samples(const char *folder, json_t *run) {
  char *path;
  json_t *lines = json_array();
  if (json_object_set_new(run, "samples", lines)) return no_memory(folder);
  AD_TRY(ad_path_in(folder, "samples.jsonl", &path));
  ad_status status = read_lines(path, folder, lines);
  ad_release(path);
  return status;
}

/* ---- reading the other files ---- */

/* Takes ownership of a file's document, and makes from it the part that the report shows. */
typedef ad_status file_taker(json_t *document, json_t **out);

static ad_status take_whole(json_t *document, json_t **out) {
  *out = document;
  return AD_OK;
}

static ad_status take_trace(json_t *document, json_t **out) {
  ad_status status = ad_report_timeline(document, out);
  json_decref(document);
  return status;
}

static const struct {
  const char *key, *file;
  file_taker *take;
} parts[] = {{"run", "run.json", take_whole},
             {"result", "result.json", take_whole},
             {"timeline", "trace.json", take_trace},
             {"check", "check.json", take_whole}};
enum { PARTS = sizeof parts / sizeof *parts };

static ad_status read_part(size_t part, const char *path, json_t **out) {
  json_t *document;
  if (access(path, F_OK)) return AD_OK;
  AD_TRY(ad_json_read(path, &document));
  return parts[part].take(document, out);
}

/* Adds one file's part to the document. If the file cannot be used, adds a sentence to "broken" and continues. */
static int put_part(size_t part, const char *path, json_t *run) {
  json_t *found = NULL;
  ad_status status = read_part(part, path, &found);
  int failed = json_object_set_new(run, parts[part].key, found ? found : json_null());
  if (status)
    failed |= json_object_set_new(json_object_get(run, "broken"), parts[part].file, ad_json_text(ad_last_error()));
  return failed;
}

static ad_status read_parts(const char *folder, json_t *run) {
  if (json_object_set_new(run, "broken", json_object())) return no_memory(folder);
  for (size_t i = 0; i < PARTS; i++) {
    char *path;
    AD_TRY(ad_path_in(folder, parts[i].file, &path));
    int failed = put_part(i, path, run);
    ad_release(path);
    if (failed) return no_memory(folder);
  }
  return AD_OK;
}

/* ---- joining all files in one document ---- */

static ad_status read_run(const char *folder, json_t *run) {
  if (json_object_set_new(run, "folder", ad_json_text(folder))) return no_memory(folder);
  AD_TRY(read_parts(folder, run));
  AD_TRY(read_samples(folder, run));
  return read_metrics(folder, run);
}

ad_status ad_report_document(const char *folder, json_t **out) {
  json_t *run = json_object();
  ad_status status = run ? read_run(folder, run) : no_memory(folder);
  if (status)
    json_decref(run);
  else
    *out = run;
  return status;
}
