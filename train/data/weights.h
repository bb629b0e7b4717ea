/* Weights that consist of one file or several (addend/data.h): reads the index that lists several files, and returns
 * the path for messages. */
#ifndef DATA_WEIGHTS_H
#define DATA_WEIGHTS_H
#include <jansson.h>
#include "addend/data.h"

enum { AD_WEIGHTS_FILES_MAX = 4096 }; /* the most files that an index may have */
/* Reads the map of an index, from names of tensors to names of files in the same folder: {"weight_map": {"head":
 * "model-1"}}. Other keys are ignored, because they only repeat what the files state. Returns AD_INVALID, with path and
 * tensor in the message, for other content and for a file name that could lead out of the folder. Release with
 * json_decref. */
AD_CHECKED ad_status ad_weights_map_parse(const char *text, size_t size, const char *path, json_t **out);
/* Returns the path as it was given to ad_weights_open, for messages; "" for NULL. */
const char *ad_weights_path(const ad_weights *weights);

#endif
