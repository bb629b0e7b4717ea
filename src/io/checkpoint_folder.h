/* The folder that checkpoints stand in: names, what is there, and putting a new one in place. */
#ifndef IO_CHECKPOINT_FOLDER_H
#define IO_CHECKPOINT_FOLDER_H
#include <stdint.h>
#include "addend/status.h"

enum { AD_CHECKPOINTS_LISTED = 64 };

/* Steps of the complete checkpoints, newest first, at most AD_CHECKPOINTS_LISTED; returns how many. A folder that is
 * not there has none. */
int ad_checkpoint_steps(const char *folder, int64_t steps[AD_CHECKPOINTS_LISTED]);
/* "FOLDER/step-N", "FOLDER/step-N.tmp". Release with ad_release. */
AD_CHECKED ad_status ad_checkpoint_path(const char *folder, int64_t step, int is_complete, char **out);
/* Removes every step-N.tmp. */
AD_CHECKED ad_status ad_checkpoint_clean(const char *folder);
/* Renames step-N.tmp to step-N; a damaged checkpoint of that name is removed first. Returns when that is on disk. */
AD_CHECKED ad_status ad_checkpoint_place(const char *folder, int64_t step);
/* Of the checkpoints up to `step` keeps the last `keep` and removes the others. Later ones, which were unusable and
 * passed over, stay. */
AD_CHECKED ad_status ad_checkpoint_remove_older(const char *folder, int64_t step, int64_t keep);

#endif
