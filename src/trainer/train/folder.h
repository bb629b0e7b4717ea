/* The folder of a run: what an earlier run left in it, and whether that may go. */
#ifndef TRAIN_FOLDER_H
#define TRAIN_FOLDER_H
#include "addend/train.h"

/* Whether a training with these options may write to the folder. AD_INVALID, saying which run is there and what to
 * type, where an earlier run would be overwritten unasked. Local. */
ad_status ad_run_folder_check(const ad_recipe *recipe, const ad_train_options *options) AD_CHECKED;
/* What a training can go on from; of one type, so that ranks can share it. */
typedef struct ad_resumption {
  int64_t newest; /* steps of the newest checkpoint; -1: there is none */
  int64_t
      is_over; /* 1: the weights are there of a run that took all of this recipe's steps: nothing is left to train */
  int64_t finished; /* steps of the finished run that is there, whatever its recipe; 0: it is not finished */
} ad_resumption;
/* Local. */
ad_status ad_run_folder_resumption(const ad_recipe *recipe, const char *folder, ad_resumption *out) AD_CHECKED;
/* Removes what a run that was killed had begun to write. */
ad_status ad_run_folder_tidy(const char *folder) AD_CHECKED;
/* Where the step goes that is dumped: "FOLDER/dump-N"; release with ad_release. */
ad_status ad_run_dump_folder(const ad_train_options *options, char **out) AD_CHECKED;
/* Removes metrics, results, checkpoints and dumps of an earlier run and what it copied, and nothing else. */
ad_status ad_run_folder_clear(const char *folder) AD_CHECKED;

#endif
