/* The folder of a run: what an earlier run left in it, and whether that may go. */
#ifndef TRAIN_FOLDER_H
#define TRAIN_FOLDER_H
#include "addend/train.h"

/* Whether a training with these options may write to the folder. AD_INVALID, saying which run is there and what to
 * type, where an earlier run would be overwritten unasked. Local. */
ad_status ad_run_folder_check(const ad_recipe *recipe, const ad_train_options *options) AD_CHECKED;
/* *out: 1 if the folder has the weights of a run of this recipe that took all its steps, and no checkpoint: nothing is
 * left to train, and nothing to go on from. Local. */
ad_status ad_run_folder_is_over(const ad_recipe *recipe, const char *folder, int *out) AD_CHECKED;
/* Removes what a run that was killed had begun to write. */
ad_status ad_run_folder_tidy(const char *folder) AD_CHECKED;
/* Where the step goes that is dumped: "FOLDER/dump-N"; release with ad_release. */
ad_status ad_run_dump_folder(const ad_train_options *options, char **out) AD_CHECKED;
/* Removes metrics, results, checkpoints and dumps of an earlier run, and nothing else. */
ad_status ad_run_folder_clear(const char *folder) AD_CHECKED;

#endif
