/* Drawings for the report, made by gnuplot. */
#ifndef TRAIN_PLOT_H
#define TRAIN_PLOT_H
#include "train/metrics.h"
#include "train/trace.h"

/* Each gives an <svg> element for a page; release with ad_release. AD_SYSTEM if gnuplot is missing or refuses. */
ad_status ad_plot_loss(const ad_metrics *metrics, char **svg) AD_CHECKED;
ad_status ad_plot_throughput(const ad_metrics *metrics, char **svg) AD_CHECKED;
/* One step of all ranks. */
ad_status ad_plot_timeline(const ad_timeline *timeline, int64_t step, char **svg) AD_CHECKED;

#endif
