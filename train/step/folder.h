/* Finds out what an earlier run left in a run's folder, and whether a new run may write over it. */
#ifndef TRAIN_FOLDER_H
#define TRAIN_FOLDER_H
#include "addend/train.h"

/* Returns AD_OK if a training with these options may write to the folder. Returns AD_INVALID if it would overwrite an
 * earlier run although the options do not say so; the message says which run it is and what to type. Not collective. */
ad_status ad_run_folder_check(const ad_recipe *recipe, const ad_train_options *options) AD_CHECKED;
/* From what a training can resume. All members have one type, so that ranks can send them as an array. */
typedef struct ad_resumption {
  int64_t newest;   /* step of the newest checkpoint; -1 if there is none */
  int64_t is_over;  /* 1: a run took all steps of this recipe and left its weights, so that nothing is left to train */
  int64_t finished; /* number of steps of the finished run in the folder, whatever its recipe; 0 if there is no
                     * finished run */
} ad_resumption;
/* Finds what the folder has from which a training of this recipe can resume. Not collective. */
ad_status ad_run_folder_resumption(const ad_recipe *recipe, const char *folder, ad_resumption *out) AD_CHECKED;
/* Removes files that a killed run had not finished writing. */
ad_status ad_run_folder_tidy(const char *folder) AD_CHECKED;
/* Makes the path of the folder for the dump of a step: "FOLDER/dump-N". Release with ad_release. */
ad_status ad_run_dump_folder(const ad_train_options *options, char **out) AD_CHECKED;
/* Removes metrics, results, checkpoints, dumps and copied files of an earlier run, and nothing else. */
ad_status ad_run_folder_clear(const char *folder) AD_CHECKED;

#endif
