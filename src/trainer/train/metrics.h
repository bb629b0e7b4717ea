/* metrics.jsonl: the numbers of every step, a line each. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H
#include <stdio.h>
#include "addend/train.h"
#include "train/run.h"

typedef struct ad_metric {
  ad_step_report report;
  ad_evaluation held_out;    /* without samples: not measured at this step */
  ad_run_memory memory;      /* 0: not measured at this step */
  const ad_program *program; /* its losses, where they are several, and its measured numbers are written too */
} ad_metric;

typedef struct ad_metrics {
  FILE *file;
  char *path;
  int64_t count;       /* of the steps that were added */
  double step_seconds; /* smoothed; 0 before the first step */
  double step_tokens;
} ad_metrics;

/* Makes the folder and those above it, and the file in it; finds out now whether it can be written. What an earlier
 * training wrote there of the steps before `first_step` stays. */
ad_status ad_metrics_open(const char *folder, int64_t first_step, ad_metrics *out) AD_CHECKED;
/* Whether the folder, which is there, has room to begin with; nothing is left of the attempt. */
ad_status ad_metrics_try(const char *folder) AD_CHECKED;
/* How many steps an earlier training wrote there; the file stays as it is. */
ad_status ad_metrics_count(const char *folder, int64_t *out) AD_CHECKED;
/* Writes one step. */
ad_status ad_metrics_add(ad_metrics *metrics, const ad_metric *metric) AD_CHECKED;
ad_status ad_metrics_close(ad_metrics *metrics) AD_CHECKED; /* AD_IO if lines were lost */
void ad_metrics_destroy(ad_metrics *metrics);

#endif
