/* The folder of a model saved by Transformers: config.json, and the weights as safetensors files. */
#ifndef ARCHITECTURE_FOLDER_H
#define ARCHITECTURE_FOLDER_H
#include "addend/data.h"
#include "architecture/config.h"

/* Reads FOLDER/config.json. Returns AD_IO if it does not exist, and AD_INVALID, with advice in the message, if the
 * folder has files in Meta's own format. Sets *path to the file's path, even on failure; release it with ad_release.
 * `path` may be NULL. */
ad_status ad_pretrained_config(const char *folder, char **path, ad_config *out) AD_CHECKED;
/* Opens FOLDER/model.safetensors, or the shards that FOLDER/model.safetensors.index.json lists. Returns AD_INVALID,
 * with advice in the message, if the weights are pickled. */
ad_status ad_pretrained_weights(const char *folder, ad_weights **out) AD_CHECKED;

/* The names of files beside the weights that describe how to use them: configuration and tokenizer. */
enum { AD_PRETRAINED_FILES = 10 };
extern const char *const ad_pretrained_files[AD_PRETRAINED_FILES];
/* Copies ad_pretrained_files from `folder` into the folder `to`. A copy gets its final name only when it is complete.
 * Returns AD_IO on failure. */
ad_status ad_pretrained_copy(const char *folder, const char *to) AD_CHECKED;

#endif
