/* metrics.jsonl and the run folder it stands in. */
#include "train/metrics.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <string.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/unfinished.h"
#include "recipe/locale.h"

static const size_t probe_bytes = 1 << 16;  // a run writes about this much before its first minute is over
static const double smoothing = 0.9;

static ad_status cannot_write(const char *path, int reason) {
  return ad_fail(AD_IO, "%s: it cannot be written: %s", path, strerror(reason));
}

// A full disk shows before training, not after it: takes the room once and gives it back.
static ad_status probe(FILE *file, const char *path) {
  for (size_t i = 0; i < probe_bytes; i++) putc('\n', file);
  if (fflush(file) || ferror(file)) return cannot_write(path, errno);
  rewind(file);
  if (ftruncate(fileno(file), 0)) return cannot_write(path, errno);
  return AD_OK;
}

double ad_metric_tokens_per_second(const ad_metric *metric) {
  return metric->report.seconds > 0 ? (double)metric->report.count / metric->report.seconds : 0;
}

static ad_status write_line(ad_metrics *metrics, const ad_metric *metric) {
  const ad_step_report *report = &metric->report;
  FILE *file = metrics->file;
  ad_locale locale = ad_locale_enter();
  fprintf(file, "{\"step\":%lld,\"loss\":%.9g,\"lr\":%.9g,\"tokens\":%lld,\"seconds\":%.6f", (long long)report->step,
          report->loss, report->lr, (long long)report->count, report->seconds);
  if (isfinite(report->norm)) fprintf(file, ",\"norm\":%.9g", report->norm);
  if (report->skipped) fprintf(file, ",\"norm\":null,\"skipped\":true");
  if (report->loss_scale) fprintf(file, ",\"loss_scale\":%d", report->loss_scale);
  fprintf(file, ",\"tokens_per_second\":%.1f", ad_metric_tokens_per_second(metric));
  if (!isnan(metric->held_out_loss)) fprintf(file, ",\"held_out_loss\":%.9g", metric->held_out_loss);
  if (metric->memory.rank_bytes)
    fprintf(file, ",\"pss_rank_bytes\":%lld,\"pss_all_bytes\":%lld", (long long)metric->memory.rank_bytes,
            (long long)metric->memory.all_bytes);
  ad_locale_leave(locale);
  fputs("}\n", file);
  return fflush(file) || ferror(file) ? cannot_write(metrics->path, errno) : AD_OK;
}

static ad_status append(ad_metrics *metrics, const ad_metric *metric) {
  if (metrics->count == metrics->capacity) {
    size_t capacity = metrics->capacity ? 2 * metrics->capacity : 256;
    AD_TRY(ad_grow(&metrics->list, metrics->capacity, capacity));
    metrics->capacity = capacity;
  }
  metrics->list[metrics->count++] = *metric;
  return AD_OK;
}

/* ---- what an earlier training wrote ---- */

static double number_of(const json_t *line, const char *key) {
  const json_t *number = json_object_get(line, key);
  return json_is_number(number) ? json_number_value(number) : NAN;
}

static ad_metric metric_of(const json_t *line) {
  ad_step_report report = {.step = json_integer_value(json_object_get(line, "step")),
                           .loss = number_of(line, "loss"),
                           .norm = number_of(line, "norm"),
                           .lr = number_of(line, "lr"),
                           .count = json_integer_value(json_object_get(line, "tokens")),
                           .seconds = number_of(line, "seconds")};
  return (ad_metric){.report = report,
                     .held_out_loss = number_of(line, "held_out_loss"),
                     .memory = {json_integer_value(json_object_get(line, "pss_rank_bytes")),
                                json_integer_value(json_object_get(line, "pss_all_bytes"))}};
}

// Lines are in the order of steps; one that was cut short when its writer died ends them.
static ad_status read_lines(ad_metrics *metrics, const char *text, int64_t first_step) {
  const char *end = text;
  for (const char *line = text; (end = strchr(line, '\n')); line = end + 1) {
    json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
    ad_metric metric = metric_of(object);
    int earlier = json_is_object(object) && metric.report.step < first_step;
    json_decref(object);
    if (!earlier) return AD_OK;
    AD_TRY(append(metrics, &metric));
  }
  return AD_OK;
}

static ad_status read_earlier(ad_metrics *metrics, int64_t first_step) {
  char *text;
  int64_t size;
  if (access(metrics->path, F_OK)) return AD_OK;  // the checkpoint alone was kept
  AD_TRY(ad_file_read(metrics->path, INT64_MAX - 1, &text, &size));
  ad_locale locale = ad_locale_enter();
  ad_status status = read_lines(metrics, text, first_step);
  ad_locale_leave(locale);
  ad_release(text);
  return status;
}

static ad_status read_file(ad_metrics *metrics, const char *folder, int64_t first_step) {
  AD_TRY(ad_folder_make(folder));
  AD_TRY(ad_path_in(folder, "metrics.jsonl", &metrics->path));
  return first_step ? read_earlier(metrics, first_step) : AD_OK;
}

static ad_status begin_file(ad_metrics *metrics, const char *path) {
  metrics->file = fopen(path, "wx");
  if (!metrics->file) return cannot_write(metrics->path, errno);
  AD_TRY(probe(metrics->file, metrics->path));
  for (size_t i = 0; i < metrics->count; i++) AD_TRY(write_line(metrics, &metrics->list[i]));
  return AD_OK;
}

/* The earlier file stays until all that is kept of it stands in the new one. */
static ad_status open_file(ad_metrics *metrics, const char *folder, int64_t first_step) {
  AD_TRY(read_file(metrics, folder, first_step));
  char *unfinished;
  AD_TRY(ad_unfinished_path(metrics->path, &unfinished));
  ad_status status = ad_unfinished_end(unfinished, metrics->path, begin_file(metrics, unfinished));
  ad_release(unfinished);
  return status;
}

static ad_status hand_out(ad_status status, ad_metrics *metrics, ad_metrics *out) {
  if (status)
    ad_metrics_destroy(metrics);
  else
    *out = *metrics;
  return status;
}

ad_status ad_metrics_open(const char *folder, int64_t first_step, ad_metrics *out) {
  ad_metrics metrics = {0};
  return hand_out(open_file(&metrics, folder, first_step), &metrics, out);
}

ad_status ad_metrics_read(const char *folder, int64_t first_step, ad_metrics *out) {
  ad_metrics metrics = {0};
  return hand_out(read_file(&metrics, folder, first_step), &metrics, out);
}

// The first step is not like the others: it touches memory that is new.
static double smooth(const ad_metrics *metrics, double earlier, double value) {
  return metrics->count > 2 ? smoothing * earlier + (1 - smoothing) * value : value;
}

ad_status ad_metrics_add(ad_metrics *metrics, const ad_metric *metric) {
  AD_TRY(append(metrics, metric));
  metrics->step_seconds = smooth(metrics, metrics->step_seconds, metric->report.seconds);
  metrics->step_tokens = smooth(metrics, metrics->step_tokens, (double)metric->report.count);
  return write_line(metrics, metric);
}

ad_status ad_metrics_close(ad_metrics *metrics) {
  FILE *file = metrics->file;
  metrics->file = NULL;
  return file && fclose(file) ? cannot_write(metrics->path, errno) : AD_OK;
}

void ad_metrics_destroy(ad_metrics *metrics) {
  if (metrics->file) fclose(metrics->file);
  ad_release(metrics->path);
  ad_release(metrics->list);
  *metrics = (ad_metrics){0};
}
