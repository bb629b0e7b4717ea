/* metrics.jsonl and the run folder it stands in. */
#include "train/metrics.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "recipe/locale.h"

static const size_t probe_bytes = 1 << 16;  // a run writes about this much before its first minute is over
static const double smoothing = 0.9;

ad_status ad_path_in(const char *folder, const char *name, char **out) {
  size_t size = strlen(folder) + strlen(name) + 2;
  char *path;
  AD_TRY(ad_new(size, &path));
  snprintf(path, size, "%s/%s", folder, name);
  *out = path;
  return AD_OK;
}

static ad_status make_folder(const char *path) {
  struct stat found;
  if (!mkdir(path, 0777)) return AD_OK;
  int reason = errno;
  if (reason == EEXIST && !stat(path, &found) && S_ISDIR(found.st_mode)) return AD_OK;
  return ad_fail(AD_IO, "%s: the folder cannot be made: %s", path, strerror(reason));
}

static ad_status make_folders(const char *folder) {
  char *path;
  AD_TRY(ad_copy_string(folder, &path));
  ad_status status = AD_OK;
  for (char *slash = strchr(path + 1, '/'); slash && !status; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    status = make_folder(path);
    *slash = '/';
  }
  if (!status) status = make_folder(path);
  ad_release(path);
  return status;
}

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

static ad_status open_file(ad_metrics *metrics, const char *folder) {
  AD_TRY(make_folders(folder));
  AD_TRY(ad_path_in(folder, "metrics.jsonl", &metrics->path));
  metrics->file = fopen(metrics->path, "w");
  if (!metrics->file) return cannot_write(metrics->path, errno);
  return probe(metrics->file, metrics->path);
}

ad_status ad_metrics_open(const char *folder, ad_metrics *out) {
  ad_metrics metrics = {0};
  ad_status status = open_file(&metrics, folder);
  if (status) {
    ad_metrics_destroy(&metrics);
    return status;
  }
  *out = metrics;
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
  ad_locale_leave(locale);
  fputs("}\n", file);
  return fflush(file) || ferror(file) ? cannot_write(metrics->path, errno) : AD_OK;
}

// The first step is not like the others: it touches memory that is new.
static double smooth(const ad_metrics *metrics, double earlier, double value) {
  return metrics->count > 2 ? smoothing * earlier + (1 - smoothing) * value : value;
}

ad_status ad_metrics_add(ad_metrics *metrics, const ad_metric *metric) {
  if (metrics->count == metrics->capacity) {
    size_t capacity = metrics->capacity ? 2 * metrics->capacity : 256;
    AD_TRY(ad_grow(&metrics->list, metrics->capacity, capacity));
    metrics->capacity = capacity;
  }
  metrics->list[metrics->count++] = *metric;
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
