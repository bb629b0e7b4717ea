/* Writes metrics.jsonl: the numbers of every step, one line for each step. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H
#include <stdio.h>
#include "addend/train.h"
#include "step/run.h"
#include "step/validation.h"

typedef struct ad_metric {
  ad_step_report report;
  /* Only in the metric of the first step: the evaluation before that step. In all other metrics before.samples is 0. */
  ad_evaluation before;
  ad_evaluation validation;      /* samples is 0 if it was not evaluated at this step */
  ad_validation_changes changes; /* how the validation loss changed; all NaN if this is not known */
  ad_run_memory memory;          /* all 0 if the memory was not measured at this step */
  const ad_recipe *recipe;       /* of its groups, if it has any, the learning rates are written; NULL: none */
  const ad_program *program;     /* its measured numbers, and its losses if it has several, are written */
} ad_metric;

typedef struct ad_metrics {
  FILE *file;
  char *path;
  int64_t count;       /* number of steps added so far */
  double step_seconds; /* seconds of a step, smoothed over steps; 0 before the first */
  /* tokens in a second, smoothed over steps */
  double step_tokens;
} ad_metrics;

/* Makes the folder, its parents and the file. Fails immediately if the file cannot be written. Keeps what an earlier
 * training wrote about steps before `first_step`. */
ad_status ad_metrics_open(const char *folder, int64_t first_step, ad_metrics *out) AD_CHECKED;
/* Checks that the folder, which must exist, has space for the first lines of a run. Leaves nothing behind. */
ad_status ad_metrics_try(const char *folder) AD_CHECKED;
/* Counts the steps that an earlier training wrote, without changing the file. */
ad_status ad_metrics_count(const char *folder, int64_t *out) AD_CHECKED;
/* Writes the line of one step. */
ad_status ad_metrics_add(ad_metrics *metrics, const ad_metric *metric) AD_CHECKED;
ad_status ad_metrics_close(ad_metrics *metrics) AD_CHECKED; /* returns AD_IO if lines were lost */
void ad_metrics_destroy(ad_metrics *metrics);

#endif
