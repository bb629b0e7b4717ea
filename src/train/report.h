/* report.html: one page that needs nothing else. */
#ifndef TRAIN_REPORT_H
#define TRAIN_REPORT_H
#include <jansson.h>
#include "train/metrics.h"
#include "train/trace.h"

typedef struct ad_report {
  const char *folder; /* a proof in FOLDER/check.json, as `addend check --json` prints it, becomes a table */
  ad_run *run;
  const ad_metrics *metrics;
  const ad_timeline *timeline;
} ad_report;
/* AD_IO names the path. Without gnuplot the page says so and has the tables alone. */
ad_status ad_report_write(const ad_report *report) AD_CHECKED;

/* The table of a proof; says so where there is none. */
void ad_report_proof(FILE *page, const char *folder);
/* The map of the mistakes that a check derived from the program; nothing where it planted none. */
void ad_report_map(FILE *page, const json_t *document);
/* Text as HTML shows it. */
void ad_report_text(FILE *page, const char *text);

#endif
