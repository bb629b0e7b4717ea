/* The page that shows how a run went: loss, speed, one step on all ranks, the check, the recipe.
 *
 * For users. Any thread may call these functions, one at a time for one folder or path. */
#ifndef ADDEND_REPORT_H
#define ADDEND_REPORT_H
#include <stddef.h>
#include "addend/status.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Writes the page of one run, or of several runs overlaid, as one self-contained HTML file. Reads only files in the
 * runs' folders: metrics.jsonl and, if they exist, run.json, trace.json and check.json. A run may still be running,
 * or have been killed. AD_INVALID: a folder contains no run; AD_IO. */
AD_API AD_CHECKED ad_status ad_report_write(const char *const *folders, size_t count, const char *path);

/* Writes a text (a plan's picture, a check's document) as addend writes all its files: under a temporary name beside
 * `path`, which is renamed to `path` when the file is complete. Until then, or if writing fails, an existing file stays
 * as it is. A symbolic link is itself replaced; a folder, a pipe or a device is AD_IO. */
AD_API AD_CHECKED ad_status ad_write_text(const char *text, const char *path);

#if defined(__cplusplus)
}
#endif
#endif
