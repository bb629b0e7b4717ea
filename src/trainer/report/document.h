/* A run as one JSON document, made from the files in its folder. */
#ifndef REPORT_DOCUMENT_H
#define REPORT_DOCUMENT_H
#include <jansson.h>
#include "addend/status.h"

/* {"folder", "run", "metrics", "metrics_every", "timeline", "check", "broken"}: what is not there is null; "broken" has
 * a sentence for each file that is there and cannot be used. Of a long run every n-th line of its metrics, and those
 * that measured more; n is "metrics_every". AD_INVALID: the folder holds no run; AD_IO. */
ad_status ad_report_document(const char *folder, json_t **out) AD_CHECKED;

/* {"steps", "ranks", "spans"} of an early and of a late step, and of all of them "idle": the share that each rank
 * waited for others. AD_IO: it is no trace of a training. *out is NULL where it has no whole step. */
ad_status ad_report_timeline(const json_t *trace, json_t **out) AD_CHECKED;

#endif
