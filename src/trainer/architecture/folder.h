/* The folder of a model as Transformers saves it: config.json, and the weights as safetensors. */
#ifndef ARCHITECTURE_FOLDER_H
#define ARCHITECTURE_FOLDER_H
#include "addend/data.h"
#include "architecture/config.h"

/* FOLDER/config.json, read. AD_IO where there is none; AD_INVALID with what to do for Meta's own files. *path is its
 * name, to be released with ad_release, also after an error; NULL allowed. */
ad_status ad_pretrained_config(const char *folder, char **path, ad_config *out) AD_CHECKED;
/* FOLDER/model.safetensors, or model.safetensors.index.json and its shards. AD_INVALID with what to do where they are
 * pickled, which is refused. */
ad_status ad_pretrained_weights(const char *folder, ad_weights **out) AD_CHECKED;

/* What stands beside the weights and says how they are used: the configuration, the tokenizer. */
enum { AD_PRETRAINED_FILES = 10 };
extern const char *const ad_pretrained_files[AD_PRETRAINED_FILES];
/* Copies those of them that the folder has into another, where each gets its name when it is whole. AD_IO. */
ad_status ad_pretrained_copy(const char *folder, const char *to) AD_CHECKED;

#endif
