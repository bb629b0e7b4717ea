/* The folder of a model saved by Transformers: config.json, and the weights as safetensors files. */
#ifndef ARCHITECTURE_FOLDER_H
#define ARCHITECTURE_FOLDER_H
#include "addend/data.h"
#include "architecture/config.h"

/* Reads FOLDER/config.json. AD_IO: there is none. AD_INVALID: the folder has Meta's own files; the message says what
 * to do. *path is the file's name, also after an error; release it with ad_release. `path` may be NULL. */
ad_status ad_pretrained_config(const char *folder, char **path, ad_config *out) AD_CHECKED;
/* Opens FOLDER/model.safetensors, or model.safetensors.index.json and its shards. AD_INVALID if the weights are
 * pickled, which is refused; the message says what to do. */
ad_status ad_pretrained_weights(const char *folder, ad_weights **out) AD_CHECKED;

/* The files beside the weights that say how to use them: the configuration, the tokenizer. */
enum { AD_PRETRAINED_FILES = 10 };
extern const char *const ad_pretrained_files[AD_PRETRAINED_FILES];
/* Copies the files of this kind from `folder` into the folder `to`. Each gets its name only when it is complete.
 * AD_IO. */
ad_status ad_pretrained_copy(const char *folder, const char *to) AD_CHECKED;

#endif
