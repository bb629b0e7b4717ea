/* Files of a run that grow line by line: a JSON object each, with its `step`, in the order of steps. */
#ifndef TRAIN_LINES_H
#define TRAIN_LINES_H
#include <stdint.h>
#include <stdio.h>
#include "addend/status.h"

/* A new file, to be closed with fclose; finds out now whether it can be written. Of one that is there the lines stay
 * whose step is before `first_step`: a training goes on there, and no step stands twice. */
ad_status ad_lines_open(const char *path, int64_t first_step, FILE **out) AD_CHECKED;
/* How many whole lines there are; the file stays as it is. */
ad_status ad_lines_count(const char *path, int64_t *out) AD_CHECKED;
/* Takes the room for a first minute, so that a full disk shows before training and not after it. */
ad_status ad_lines_probe(FILE *file, const char *path) AD_CHECKED;
/* AD_IO, with the path and errno's words. */
ad_status ad_cannot_write(const char *path, int reason) AD_CHECKED;

#endif
