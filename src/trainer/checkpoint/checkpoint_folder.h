/* The folder that checkpoints stand in: names, what is there, and putting a new one in place. */
#ifndef CHECKPOINT_CHECKPOINT_FOLDER_H
#define CHECKPOINT_CHECKPOINT_FOLDER_H
#include <stdint.h>
#include "addend/status.h"

enum { AD_CHECKPOINTS_LISTED = 64 };

/* Steps of the complete checkpoints, newest first, at most AD_CHECKPOINTS_LISTED; returns how many. A folder that is
 * not there has none. */
int ad_checkpoint_steps(const char *folder, int64_t steps[AD_CHECKPOINTS_LISTED]);
/* "FOLDER/step-N"; with a token "FOLDER/step-N.TOKEN.tmp", which is not complete. Release with ad_release. */
AD_CHECKED ad_status ad_checkpoint_path(const char *folder, int64_t step, const char *token, char **out);
/* Removes every step-*.tmp, a link itself and not what it leads to. */
AD_CHECKED ad_status ad_checkpoint_clean(const char *folder);
/* Gives step-N.TOKEN.tmp its name; one that has it makes way, and is there as step-N.old.tmp until remove_older.
 * Returns when that is on disk. */
AD_CHECKED ad_status ad_checkpoint_place(const char *folder, int64_t step, const char *token);
/* Removes what made way for `step`, and those older than the last `keep` up to it; later ones (an unusable one that was
 * passed over) stay. */
AD_CHECKED ad_status ad_checkpoint_remove_older(const char *folder, int64_t step, int64_t keep);

/* Steps of the newest complete checkpoint in the folder, usable or not; -1: there is none. Local. */
int64_t ad_checkpoint_newest(const char *folder);

#endif
