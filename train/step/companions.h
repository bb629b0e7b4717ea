/* Copies files that belong to a run into its folder: configuration and tokenizer of the model in model.from, and the
 * tokenizer of its data. The run can then be sampled and exported without the originals. */
#ifndef TRAIN_COMPANIONS_H
#define TRAIN_COMPANIONS_H
#include <jansson.h>
#include "step/run.h"

/* Copies those companions that are missing from the folder. If the folder has another file of the same name, that file
 * stays and a warning is logged. Only the first rank calls this. */
ad_status ad_companions_copy(const ad_run *run, const char *folder) AD_CHECKED;
/* Lists the names of the copies in the folder, for run.json. Files of data in the folder itself are not listed. Returns
 * NULL if there is no memory. */
json_t *ad_companions_list(const ad_run *run, const char *folder);

#endif
