/* Looks into a run's folder: what an earlier run left there, and whether a new one may write over it. */
#ifndef TRAIN_FOLDER_H
#define TRAIN_FOLDER_H
#include "addend/train.h"

/* Returns AD_OK if a training with these options may write to the folder. AD_INVALID: it would overwrite an earlier run
 * without having been asked to; the message says which run, and what to type. Not collective. */
ad_status ad_run_folder_check(const ad_recipe *recipe, const ad_train_options *options) AD_CHECKED;
/* What a training can resume from. All members have one type, so that ranks can share them as an array. */
typedef struct ad_resumption {
  int64_t newest;   /* steps of the newest checkpoint; -1: there is none */
  int64_t is_over;  /* 1: a run took all steps of this recipe and left its weights, so nothing is left to train */
  int64_t finished; /* steps of the finished run in the folder, whatever its recipe; 0: it has no finished run */
} ad_resumption;
/* Finds what a training of this recipe can resume from in the folder. Not collective. */
ad_status ad_run_folder_resumption(const ad_recipe *recipe, const char *folder, ad_resumption *out) AD_CHECKED;
/* Removes files that a killed run had begun to write. */
ad_status ad_run_folder_tidy(const char *folder) AD_CHECKED;
/* Makes the path of the folder for the dumped step: "FOLDER/dump-N"; release with ad_release. */
ad_status ad_run_dump_folder(const ad_train_options *options, char **out) AD_CHECKED;
/* Removes an earlier run's metrics, results, checkpoints, dumps and copied files, and nothing else. */
ad_status ad_run_folder_clear(const char *folder) AD_CHECKED;

#endif
