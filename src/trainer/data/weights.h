/* Weights as files hold them: one safetensors file, or several shards that an index joins, as Hugging Face writes them
 * (model.safetensors.index.json). What a model makes of them is decided elsewhere. */
#ifndef DATA_WEIGHTS_H
#define DATA_WEIGHTS_H
#include <jansson.h>
#include "addend/safetensors.h"

typedef struct ad_weights {
  ad_safetensors **files; /* in the order of their names; no two have a tensor of one name */
  size_t count;
} ad_weights;

/* A path that ends in ".json" is that of an index. The errors of ad_safetensors_open; of an index also AD_INVALID,
 * naming what it says wrongly, tensors that a file lacks and tensors of the files that it does not list. Nothing is
 * read but headers. */
AD_CHECKED ad_status ad_weights_open(const char *path, ad_weights *out);
void ad_weights_close(ad_weights *weights);
const ad_safetensor *ad_weights_find(const ad_weights *weights, const char *name); /* NULL: none */

enum { AD_WEIGHTS_FILES_MAX = 4096 }; /* of one index */
/* The map of an index, from names of tensors to names of files beside it: {"weight_map": {"head": "model-1"}}; what
 * else stands in an index says nothing that the files do not. AD_INVALID, naming path and tensor, for anything else and
 * for a name that could lead out of the folder. Release with json_decref. */
AD_CHECKED ad_status ad_weights_map_parse(const char *text, size_t size, const char *path, json_t **out);

#endif
