/* Writes metrics.jsonl into a run's folder. */
#include "step/metrics.h"

#include <errno.h>
#include <math.h>
#include <unistd.h>
#include "base/error.h"
#include "base/memory.h"
#include "files/file.h"
#include "base/unfinished.h"
#include "base/locale.h"
#include "program/program.h"
#include "recipe/groups.h"
#include "step/lines.h"

/* The weight of earlier steps in the smoothed numbers. */
static const double smoothing = 0.9;

static double tokens_per_second(const ad_step_report *report) {
  return report->seconds > 0 ? (double)report->count / report->seconds : 0;
}

/* Writes each loss by itself, if the program has several. */
static void write_losses(FILE *file, const ad_metric *metric) {
  size_t count = ad_program_loss_count(metric->program);
  for (size_t i = 0; i < count && count > 1; i++)
    fprintf(file, "%s\"%s\":%.9g", i ? "," : ",\"losses\":{", ad_program_loss(metric->program, i)->name,
            metric->report.losses[i]);
  if (count > 1) fputs("}", file);
}

/* Writes the learning rate of each entry of the recipe's groups; null for one that is frozen. */
static void write_group_rates(FILE *file, const ad_metric *metric) {
  const ad_recipe *recipe = metric->recipe;
  double rates[AD_GROUPS_MAX];
  if (!recipe || !recipe->group_count || ad_recipe_rates(recipe, metric->report.step, rates)) return;
  for (size_t i = 0; i < recipe->group_count; i++) {
    fputs(i ? "," : ",\"group_lr\":[", file);
    if (recipe->groups[i].frozen)
      fputs("null", file);
    else
      fprintf(file, "%.9g", rates[i + 1]);
  }
  fputs("]", file);
}

static void write_values(FILE *file, const char *name, const double *values, size_t count) {
  fprintf(file, "\"%s\":%s", name, count == 1 ? "" : "[");
  for (size_t i = 0; i < count; i++) fprintf(file, "%s%.9g", i ? "," : "", values[i]);
  if (count != 1) fputs("]", file);
}

static void write_measured(FILE *file, const ad_program *program) {
  const double *values;
  const char *name;
  size_t index = 0, count;
  while ((values = ad_program_measured(program, index, &name, &count))) {
    fputs(index++ ? "," : ",\"measured\":{", file);
    write_values(file, name, values, count);
  }
  if (index) fputs("}", file);
}

static void write_validation(FILE *file, const ad_evaluation *validation) {
  if (!validation->samples || isnan(validation->loss)) return;
  fprintf(file, ",\"validation_loss\":%.9g,\"validation_samples\":%lld", validation->loss,
          (long long)validation->samples);
  if (!isnan(validation->standard_error))
    fprintf(file, ",\"validation_standard_error\":%.6g", validation->standard_error);
}

static void write_change(FILE *file, const char *name, const ad_validation_change *change) {
  static const char *const verdicts[] = {"lower", "noise", "higher"};
  if (isnan(change->change)) return;
  fprintf(file, ",\"%s\":{\"step\":%lld,\"change\":%.9g,\"standard_error\":%.6g,\"verdict\":\"%s\"}", name,
          (long long)change->since, change->change, change->standard_error, verdicts[change->verdict + 1]);
}

/* Writes the evaluation before the first step into the line of the first step. */
static void write_before(FILE *file, const ad_evaluation *before) {
  if (!before->samples || isnan(before->loss)) return;
  fprintf(file, ",\"validation_before\":{\"loss\":%.9g,\"samples\":%lld", before->loss, (long long)before->samples);
  if (!isnan(before->standard_error)) fprintf(file, ",\"standard_error\":%.6g", before->standard_error);
  fputs("}", file);
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
  fprintf(file, ",\"tokens_per_second\":%.1f,\"wait_seconds\":%.6f,\"reduction_seconds\":%.6f",
          tokens_per_second(report), report->wait_seconds, report->reduction_seconds);
  write_group_rates(file, metric);
  write_losses(file, metric);
  write_measured(file, metric->program);
  write_before(file, &metric->before);
  write_validation(file, &metric->validation);
  write_change(file, "validation_since_first", &metric->changes.since_first);
  write_change(file, "validation_since_best", &metric->changes.since_best);
  if (metric->memory.rank_bytes)
    fprintf(file, ",\"pss_rank_bytes\":%lld,\"pss_all_bytes\":%lld", (long long)metric->memory.rank_bytes,
            (long long)metric->memory.all_bytes);
  ad_locale_leave(locale);
  fputs("}\n", file);
  return fflush(file) || ferror(file) ? ad_cannot_write(metrics->path, errno) : AD_OK;
}

/* ---- opening, writing and closing metrics.jsonl ---- */

ad_status ad_metrics_count(const char *folder, int64_t *out) {
  char *path;
  AD_TRY(ad_path_in(folder, "metrics.jsonl", &path));
  ad_status status = ad_lines_count(path, out);
  ad_release(path);
  return status;
}

static ad_status try_at(const char *path, const char *unfinished) {
  FILE *file = fopen(unfinished, "wxe");
  if (!file) return ad_cannot_write(path, errno);
  ad_status status = ad_lines_probe(file, path);
  fclose(file);
  unlink(unfinished);
  return status;
}

ad_status ad_metrics_try(const char *folder) {
  char *path, *unfinished;
  AD_TRY(ad_path_in(folder, "metrics.jsonl", &path));
  ad_status status = ad_unfinished_path(path, &unfinished);
  if (!status) {
    status = try_at(path, unfinished);
    ad_release(unfinished);
  }
  ad_release(path);
  return status;
}

static ad_status open_file(ad_metrics *metrics, const char *folder, int64_t first_step) {
  AD_TRY(ad_folder_make(folder));
  AD_TRY(ad_path_in(folder, "metrics.jsonl", &metrics->path));
  return ad_lines_open(metrics->path, first_step, &metrics->file);
}

ad_status ad_metrics_open(const char *folder, int64_t first_step, ad_metrics *out) {
  ad_metrics metrics = {0};
  ad_status status = open_file(&metrics, folder, first_step);
  if (status)
    ad_metrics_destroy(&metrics);
  else
    *out = metrics;
  return status;
}

// Returns `earlier` smoothed with `value`. The first step is left out, because it touches new memory and is slower than
// the others.
static double smooth(const ad_metrics *metrics, double earlier, double value) {
  return metrics->count > 2 ? smoothing * earlier + (1 - smoothing) * value : value;
}

ad_status ad_metrics_add(ad_metrics *metrics, const ad_metric *metric) {
  metrics->count++;
  metrics->step_seconds = smooth(metrics, metrics->step_seconds, metric->report.seconds);
  metrics->step_tokens = smooth(metrics, metrics->step_tokens, (double)metric->report.count);
  return write_line(metrics, metric);
}

ad_status ad_metrics_close(ad_metrics *metrics) {
  FILE *file = metrics->file;
  metrics->file = NULL;
  return file && fclose(file) ? ad_cannot_write(metrics->path, errno) : AD_OK;
}

void ad_metrics_destroy(ad_metrics *metrics) {
  if (metrics->file) fclose(metrics->file);
  ad_release(metrics->path);
  *metrics = (ad_metrics){0};
}
