/* The folder of checkpoints: their names, a list of those that exist, and giving a new one its name. */
#ifndef CHECKPOINT_CHECKPOINT_FOLDER_H
#define CHECKPOINT_CHECKPOINT_FOLDER_H
#include <stdint.h>
#include "addend/status.h"

enum { AD_CHECKPOINTS_LISTED = 64 };

/* Lists the steps of the complete checkpoints, newest first, at most AD_CHECKPOINTS_LISTED; returns how many. A folder
 * that does not exist has none. */
int ad_checkpoint_steps(const char *folder, int64_t steps[AD_CHECKPOINTS_LISTED]);
/* Makes the path "FOLDER/step-N" or, with a token, "FOLDER/step-N.TOKEN.tmp", the path of a checkpoint that is not
 * complete. Release with ad_release. */
AD_CHECKED ad_status ad_checkpoint_path(const char *folder, int64_t step, const char *token, char **out);
/* Removes every step-*.tmp. Of a symbolic link only the link itself is removed. */
AD_CHECKED ad_status ad_checkpoint_clean(const char *folder);
/* Gives step-N.TOKEN.tmp the name step-N. An earlier checkpoint with that name is renamed to step-N.old.tmp, where it
 * stays until ad_checkpoint_remove_older. Returns when the change is on disk. */
AD_CHECKED ad_status ad_checkpoint_place(const char *folder, int64_t step, const char *token);
/* Removes step-N.old.tmp of `step`. Of the checkpoints up to `step`, keeps the last `keep` and removes the others.
 * Checkpoints after `step` stay: they were unusable and skipped. */
AD_CHECKED ad_status ad_checkpoint_remove_older(const char *folder, int64_t step, int64_t keep);

/* The step of the newest complete checkpoint in the folder, usable or not; -1: there is none. Local to this rank. */
int64_t ad_checkpoint_newest(const char *folder);

#endif
