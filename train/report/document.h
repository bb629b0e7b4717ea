/* Makes one JSON document from the files in a run's folder. */
#ifndef REPORT_DOCUMENT_H
#define REPORT_DOCUMENT_H
#include <jansson.h>
#include "addend/status.h"

/* Makes the document {"folder", "run", "metrics", "metrics_every", "timeline", "check", "broken", "samples"}. A file
 * that does not exist gives null; "broken" has a sentence for each file that cannot be used. For a long run, "metrics"
 * has every n-th line (n is "metrics_every") and the lines with more measurements. Returns AD_INVALID if the folder has
 * no run, or AD_IO. */
ad_status ad_report_document(const char *folder, json_t **out) AD_CHECKED;

/* Makes {"steps", "ranks", "spans", "idle"}: the spans of an early step and of the last step, and for each rank the
 * share of all steps in which it waited for other ranks. Sets *out to NULL if the trace has no complete step. Returns
 * AD_IO if `trace` is no trace of a training. */
ad_status ad_report_timeline(const json_t *trace, json_t **out) AD_CHECKED;

#endif
