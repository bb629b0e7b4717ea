/* run.json: what a run is, from what it was made, by which commands, on which machine. */
#ifndef TRAIN_PROVENANCE_H
#define TRAIN_PROVENANCE_H
#include <jansson.h>
#include "addend/train.h"

/* The run.json that a folder has; *out is NULL where there is none. Release with json_decref. */
ad_status ad_provenance_read(const char *folder, json_t **out) AD_CHECKED;
/* The document of a training that goes on after `first_step` steps: all of it tells of this training, but "starts" has
 * those before it too, where the folder has a run.json with them (`earlier`). */
ad_status ad_provenance_create(const ad_run *run, const char *folder, int earlier, json_t **out) AD_CHECKED;
/* One more of its "starts": now. */
ad_status ad_provenance_start(json_t *document, int64_t first_step) AD_CHECKED;
/* The last of the "starts" has ended; `finished`: and all steps were taken. */
ad_status ad_provenance_end(json_t *document, int finished) AD_CHECKED;
ad_status ad_provenance_write(json_t *document, const char *folder) AD_CHECKED;

#endif
