/* run.json: facts about a run: its recipe, model, data, commands and machine. */
#ifndef TRAIN_PROVENANCE_H
#define TRAIN_PROVENANCE_H
#include <jansson.h>
#include "addend/train.h"

/* Reads the folder's run.json. Sets *out to NULL if there is none. Release with json_decref. */
ad_status ad_provenance_read(const char *folder, json_t **out) AD_CHECKED;
/* Returns the name of the run's program if this process does not have that program, else NULL. Also returns NULL if the
 * document names no program. */
const char *ad_provenance_foreign_kind(const json_t *document);
/* Makes the document of a training. If `earlier` is 1, keeps the "starts" of the folder's run.json, if there are any;
 * everything else is about this training. Release with json_decref. */
ad_status ad_provenance_create(const ad_run *run, const char *folder, int earlier, json_t **out) AD_CHECKED;
/* Appends an entry to "starts": training starts now, after `first_step` steps. */
ad_status ad_provenance_start(json_t *document, int64_t first_step) AD_CHECKED;
/* Adds the time of its end to the last entry of "starts". `finished` is 1 if all steps were taken. */
ad_status ad_provenance_end(json_t *document, int finished) AD_CHECKED;
ad_status ad_provenance_write(json_t *document, const char *folder) AD_CHECKED;

#endif
