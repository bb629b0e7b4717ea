/* Writes metrics.jsonl: the numbers of every step, one line each. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H
#include <stdio.h>
#include "addend/train.h"
#include "step/run.h"
#include "step/validation.h"

typedef struct ad_metric {
  ad_step_report report;
  ad_evaluation before;     /* the validation set before the first step; only in that step's metric, else samples 0 */
  ad_evaluation validation; /* samples 0: not measured at this step */
  ad_validation_changes changes; /* how the validation loss changed; all NaN: not known */
  ad_run_memory memory;          /* all 0: not measured at this step */
  const ad_program *program;     /* the program: its measured numbers are written, and its losses if it has several */
} ad_metric;

typedef struct ad_metrics {
  FILE *file;
  char *path;
  int64_t count;       /* steps added so far */
  double step_seconds; /* smoothed over steps; 0 before the first */
  /* smoothed tokens a second */
  double step_tokens;
} ad_metrics;

/* Makes the folder, its parents and the file; fails now if the file cannot be written. Keeps what an earlier training
 * wrote there about steps before `first_step`. */
ad_status ad_metrics_open(const char *folder, int64_t first_step, ad_metrics *out) AD_CHECKED;
/* Checks that the existing folder has room for a run's first lines; leaves nothing behind. */
ad_status ad_metrics_try(const char *folder) AD_CHECKED;
/* Counts the steps that an earlier training wrote; the file does not change. */
ad_status ad_metrics_count(const char *folder, int64_t *out) AD_CHECKED;
/* Writes the line of one step. */
ad_status ad_metrics_add(ad_metrics *metrics, const ad_metric *metric) AD_CHECKED;
ad_status ad_metrics_close(ad_metrics *metrics) AD_CHECKED; /* AD_IO if lines were lost */
void ad_metrics_destroy(ad_metrics *metrics);

#endif
