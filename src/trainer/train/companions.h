/* Files that belong to what a run begins with (the configuration and the tokenizer of model.from) and to its data (a
 * tokenizer): copies of them in its folder, so that what was learned can be understood, sampled and exported without
 * them. */
#ifndef TRAIN_COMPANIONS_H
#define TRAIN_COMPANIONS_H
#include <jansson.h>
#include "train/run.h"

/* Copies those that are not there. A file of that name that is another one stays, with a warning. The first rank's. */
ad_status ad_companions_copy(const ad_run *run, const char *folder) AD_CHECKED;
/* Names of those in the folder that are copies, for run.json; never of the data's own files. NULL: no memory. */
json_t *ad_companions_list(const ad_run *run, const char *folder);

#endif
