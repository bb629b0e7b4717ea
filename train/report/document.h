/* Makes one JSON document of a run from the files in its folder. */
#ifndef REPORT_DOCUMENT_H
#define REPORT_DOCUMENT_H
#include <jansson.h>
#include "addend/status.h"

/* {"folder", "run", "metrics", "metrics_every", "timeline", "check", "broken", "samples"}. A missing file is null;
 * "broken" has a sentence for each file that cannot be used. Of a long run, "metrics" has every n-th line (n is
 * "metrics_every") and the lines with more measurements. AD_INVALID: the folder holds no run; AD_IO. */
ad_status ad_report_document(const char *folder, json_t **out) AD_CHECKED;

/* {"steps", "ranks", "spans"} of an early step and of the last one, and "idle": the share of all steps in which each
 * rank waited for others. *out is NULL if the trace has no complete step. AD_IO: it is no trace of a training. */
ad_status ad_report_timeline(const json_t *trace, json_t **out) AD_CHECKED;

#endif
