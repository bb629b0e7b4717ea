/* Files of a run that grow by one line at a time: a JSON object with its `step`, in the order of steps. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H
#include <stdint.h>
#include <stdio.h>
#include "addend/status.h"

/* Opens a file for writing and keeps the lines of an existing one whose step is before `first_step`, so that a resumed
 * training repeats no step. Fails now if the file cannot be written. Close with fclose. */
ad_status ad_lines_open(const char *path, int64_t first_step, FILE **out) AD_CHECKED;
/* Counts the complete lines; the file does not change. */
ad_status ad_lines_count(const char *path, int64_t *out) AD_CHECKED;
/* Writes as much as the first minute of training will write, then rewinds. So a full disk is reported before
 * training. */
ad_status ad_lines_probe(FILE *file, const char *path) AD_CHECKED;
/* Fails with AD_IO and a message that `path` cannot be written; `reason` is the errno. */
ad_status ad_cannot_write(const char *path, int reason) AD_CHECKED;

#endif
