/* Reads the index of several files of weights (addend/data.h). */
#ifndef DATA_WEIGHTS_H
#define DATA_WEIGHTS_H
#include <jansson.h>
#include "addend/data.h"

enum { AD_WEIGHTS_FILES_MAX = 4096 }; /* files of one index */
/* Reads the map in an index, from names of tensors to names of files beside the index: {"weight_map": {"head":
 * "model-1"}}. Other keys are ignored: they only repeat the files. AD_INVALID, naming path and tensor, for other
 * content, and for a file name that could lead out of the folder. Release with json_decref. */
AD_CHECKED ad_status ad_weights_map_parse(const char *text, size_t size, const char *path, json_t **out);

#endif
