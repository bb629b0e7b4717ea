/* The folder of checkpoints: their names, the list of existing ones, and how a new one gets its name. */
#ifndef CHECKPOINT_CHECKPOINT_FOLDER_H
#define CHECKPOINT_CHECKPOINT_FOLDER_H
#include <stdint.h>
#include "addend/status.h"
#include "base/internal.h"

enum { AD_CHECKPOINTS_LISTED = 64 };

/* Lists the steps of the complete checkpoints, newest first and at most AD_CHECKPOINTS_LISTED, and returns how many.
 * Returns 0 if the folder does not exist. */
int ad_checkpoint_steps(const char *folder, int64_t steps[AD_CHECKPOINTS_LISTED]);
/* Makes the path "FOLDER/step-N" or, with a token, "FOLDER/step-N.TOKEN.tmp" for a checkpoint that is not complete.
 * Release with ad_release. */
AD_CHECKED ad_status ad_checkpoint_path(const char *folder, int64_t step, const char *token, char **out);
/* Removes every step-*.tmp in the folder. Of a symbolic link with such a name only the link is removed, not its
 * target. */
AD_CHECKED ad_status ad_checkpoint_clean(const char *folder);
/* Renames step-N.TOKEN.tmp to step-N. An earlier checkpoint with that name is renamed to step-N.old.tmp, until
 * ad_checkpoint_remove_older removes it. Returns when the change is on disk. */
AD_CHECKED ad_status ad_checkpoint_place(const char *folder, int64_t step, const char *token);
/* Removes step-N.old.tmp of `step`. Of the checkpoints up to `step`, keeps the newest `keep` and removes the others.
 * Checkpoints after `step` stay: loading found them unusable and skipped them. */
AD_INTERNAL AD_CHECKED ad_status ad_checkpoint_remove_older(const char *folder, int64_t step, int64_t keep);

/* Returns the step of the newest complete checkpoint in the folder, even if it is unusable; -1 if there is none. Other
 * ranks are not asked. */
AD_INTERNAL int64_t ad_checkpoint_newest(const char *folder);

#endif
