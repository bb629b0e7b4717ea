/* The page that shows how a run went: loss, speed, one step on all ranks, the proof, the recipe. */
#ifndef ADDEND_REPORT_H
#define ADDEND_REPORT_H
#include <stddef.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Writes the page of one run, or of several laid over each other, from the files in their folders alone: metrics.jsonl,
 * and where they are there run.json, trace.json and check.json. A run may be under way, or have been killed. It is one
 * HTML file that needs nothing else. AD_INVALID: a folder holds no run; AD_IO. */
AD_API AD_CHECKED ad_status ad_report_write(const char *const *folders, size_t count, const char *path);

/* Writes a text (a plan's picture, a proof's document) as every file of addend's is written: beside the place, under
 * another name, which becomes `path` when it is whole. Until then, and where it cannot be written, what is called so
 * stays as it is. Of a link the link itself is replaced; a folder, a pipe and a device are AD_IO. */
AD_API AD_CHECKED ad_status ad_write_text(const char *text, const char *path);

#if defined(__cplusplus)
}
#endif
#endif
