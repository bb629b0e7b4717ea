/* Copies files that belong to a run into its folder: the configuration and the tokenizer of the model in model.from,
 * and the tokenizer of its data. So the run can be sampled and exported without the originals. */
#ifndef TRAIN_COMPANIONS_H
#define TRAIN_COMPANIONS_H
#include <jansson.h>
#include "step/run.h"

/* Copies the files that are missing from the folder. A different file of the same name stays, with a warning. Called by
 * the first rank. */
ad_status ad_companions_copy(const ad_run *run, const char *folder) AD_CHECKED;
/* Names of the copies that are in the folder, for run.json; the data's own files are never among them. NULL: no
 * memory. */
json_t *ad_companions_list(const ad_run *run, const char *folder);

#endif
