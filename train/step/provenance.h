/* run.json: the facts about a run: its recipe, model and data, its commands, and its machine. */
#ifndef TRAIN_PROVENANCE_H
#define TRAIN_PROVENANCE_H
#include <jansson.h>
#include "addend/train.h"

/* Reads the folder's run.json; *out NULL: there is none. Release with json_decref. */
ad_status ad_provenance_read(const char *folder, json_t **out) AD_CHECKED;
/* Returns the program's name if this process does not have the run's program. NULL: it has, or none is named. */
const char *ad_provenance_foreign_kind(const json_t *document);
/* Makes the document of a training. earlier: 1: keeps the "starts" of the folder's run.json, if there are any; all else
 * is about this training. Release with json_decref. */
ad_status ad_provenance_create(const ad_run *run, const char *folder, int earlier, json_t **out) AD_CHECKED;
/* Appends a start to "starts": now, after `first_step` steps. */
ad_status ad_provenance_start(json_t *document, int64_t first_step) AD_CHECKED;
/* Notes the end of the last start; finished: all steps were taken. */
ad_status ad_provenance_end(json_t *document, int finished) AD_CHECKED;
ad_status ad_provenance_write(json_t *document, const char *folder) AD_CHECKED;

#endif
