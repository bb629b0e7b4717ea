/* Files of a run that grow line by line: each line is a JSON object with its `step`, in the order of steps. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H
#include <stdint.h>
#include <stdio.h>
#include "addend/status.h"

/* Opens a file for writing, and keeps those lines of an existing file whose step is before `first_step`, so that a
 * resumed training repeats no step. Fails immediately if the file cannot be written. Close with fclose. */
ad_status ad_lines_open(const char *path, int64_t first_step, FILE **out) AD_CHECKED;
/* Counts the complete lines of a file, without changing it. */
ad_status ad_lines_count(const char *path, int64_t *out) AD_CHECKED;
/* Writes as much as the first minute of training will write, and rewinds, so that a full disk is reported before
 * training. */
ad_status ad_lines_probe(FILE *file, const char *path) AD_CHECKED;
/* Fails with AD_IO and the message that `path` cannot be written; `reason` is the errno. */
ad_status ad_cannot_write(const char *path, int reason) AD_CHECKED;

#endif
