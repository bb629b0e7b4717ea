/* The index that joins the files of weights (addend/data.h), read. */
#ifndef DATA_WEIGHTS_H
#define DATA_WEIGHTS_H
#include <jansson.h>
#include "addend/data.h"

enum { AD_WEIGHTS_FILES_MAX = 4096 }; /* of one index */
/* The map of an index, from names of tensors to names of files beside it: {"weight_map": {"head": "model-1"}}; what
 * else stands in an index says nothing that the files do not. AD_INVALID, naming path and tensor, for anything else and
 * for a name that could lead out of the folder. Release with json_decref. */
AD_CHECKED ad_status ad_weights_map_parse(const char *text, size_t size, const char *path, json_t **out);

#endif
