/* Training from the first step to the last: the loop, what the first rank writes, and how all ranks learn whether it
 * could.
 */
#include <math.h>
#include <stdio.h>
#include "base/error.h"
#include "base/memory.h"
#include "base/options.h"
#include "train/metrics.h"
#include "train/report.h"
#include "train/run.h"

enum { HELD_OUT_MEASUREMENTS = 10 };

typedef struct training {
  ad_train_options options;
  ad_run *run;
  ad_metrics metrics; /* on the first rank */
} training;

typedef struct outcome {
  int32_t status;
  char message[AD_MESSAGE_MAX];
} outcome;

// The first rank's outcome becomes everyone's.
static ad_status agree(ad_run *run, ad_status own) {
  outcome shared = {.status = own};
  if (own) snprintf(shared.message, sizeof shared.message, "%s", ad_last_error());
  ad_collective broadcast = {.op = AD_BROADCAST,
                             .group = run->everyone,
                             .in = &shared,
                             .out = &shared,
                             .count = sizeof shared / sizeof(int32_t),
                             .dtype = AD_I32,
                             .site = AD_HERE};
  AD_TRY(ad_comm_run(run->comm, &broadcast));
  return shared.status ? ad_fail((ad_status)shared.status, "%s", shared.message) : AD_OK;
}

static int measures_held_out(const ad_recipe *recipe, int64_t step) {
  int64_t interval = recipe->train.steps / HELD_OUT_MEASUREMENTS + 1;
  return recipe->data.held_out > 0 && (step + 1 == recipe->train.steps || step % interval == 0);
}

static void report_progress(const training *t, const ad_step_report *report) {
  int64_t steps = t->run->recipe->train.steps;
  const ad_metrics *metrics = &t->metrics;
  if (!t->options.progress) return;
  t->options.progress(t->options.context, report, steps,
                      metrics->step_seconds > 0 ? metrics->step_tokens / metrics->step_seconds : 0,
                      (double)(steps - report->step - 1) * metrics->step_seconds);
}

static ad_status keep(training *t, const ad_metric *metric) {
  if (!ad_run_is_first(t->run)) return AD_OK;
  AD_TRY(ad_run_tell(t->run, ad_metrics_add(&t->metrics, metric)));
  report_progress(t, &metric->report);
  return AD_OK;
}

static ad_status train_steps(training *t) {
  for (int64_t step = 0; step < t->run->recipe->train.steps; step++) {
    ad_metric metric = {.held_out_loss = NAN};
    AD_TRY(ad_run_step(t->run, step, &metric.report));
    if (measures_held_out(t->run->recipe, step)) AD_TRY(ad_run_loss(t->run, step, 1, &metric.held_out_loss));
    AD_TRY(keep(t, &metric));
    if (t->run->interrupted) {
      ad_interrupt_clear();
      return ad_fail(AD_INTERRUPTED, "stopped on request after step %lld of %lld", (long long)step,
                     (long long)t->run->recipe->train.steps);
    }
  }
  return AD_OK;
}

static ad_status write_trace(const training *t, const ad_timeline *timeline) {
  char *path;
  AD_TRY(ad_path_in(t->options.folder, "trace.json", &path));
  ad_status status = ad_timeline_write(timeline, path);
  ad_release(path);
  return status;
}

static ad_status write_results(training *t, const ad_timeline *timeline) {
  if (!ad_run_is_first(t->run)) return AD_OK;
  ad_report report = {t->options.folder, t->run, &t->metrics, timeline};
  AD_TRY(ad_metrics_close(&t->metrics));
  AD_TRY(write_trace(t, timeline));
  return ad_report_write(&report);
}

static ad_status finish(training *t) {
  ad_timeline timeline = {0};
  AD_TRY(ad_timeline_gather(t->run->comm, &t->run->everyone, &t->run->trace, &timeline));
  ad_status status = agree(t->run, write_results(t, &timeline));
  ad_timeline_destroy(&timeline);
  return status;
}

// An interrupted run has its files as well; the ranks stopped together.
static ad_status run_training(training *t) {
  ad_status opened = ad_run_is_first(t->run) ? ad_metrics_open(t->options.folder, &t->metrics) : AD_OK;
  AD_TRY(agree(t->run, opened));
  ad_status trained = train_steps(t);
  if (trained && trained != AD_INTERRUPTED) return trained;
  char message[AD_MESSAGE_MAX];
  snprintf(message, sizeof message, "%s", ad_last_error());
  AD_TRY(finish(t));
  return trained ? ad_fail(trained, "%s", message) : AD_OK;
}

ad_status ad_train(ad_comm *comm, const ad_recipe *recipe, const ad_train_options *options) {
  char folder[512];
  snprintf(folder, sizeof folder, "runs/%s", recipe->name);
  training t = {0};
  AD_TRY(ad_options_take(&t.options, sizeof t.options, options, "ad_train_options"));
  if (!t.options.folder) t.options.folder = folder;
  AD_TRY(ad_run_create(comm, recipe, NULL, &t.run));
  ad_status status = run_training(&t);
  ad_metrics_destroy(&t.metrics);
  ad_run_destroy(t.run);
  return status;
}
