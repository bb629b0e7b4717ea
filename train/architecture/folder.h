/* The folder of a model as Transformers saves it: config.json, and the weights as safetensors files. */
#ifndef ARCHITECTURE_FOLDER_H
#define ARCHITECTURE_FOLDER_H
#include "addend/data.h"
#include "architecture/config.h"

/* Reads FOLDER/config.json. AD_IO: there is none; AD_INVALID, with what to do, for Meta's own files. *path is the
 * file's name, to be released with ad_release, also after an error; NULL is allowed there. */
ad_status ad_pretrained_config(const char *folder, char **path, ad_config *out) AD_CHECKED;
/* Opens FOLDER/model.safetensors, or model.safetensors.index.json and its shards. AD_INVALID, with what to do, if the
 * weights are pickled: those are refused. */
ad_status ad_pretrained_weights(const char *folder, ad_weights **out) AD_CHECKED;

/* The files in the folder of the weights and say how to use them: the configuration, the tokenizer. */
enum { AD_PRETRAINED_FILES = 10 };
extern const char *const ad_pretrained_files[AD_PRETRAINED_FILES];
/* Copies those of these files that the folder has into the folder `to`. Each gets its name when it is complete.
 * AD_IO. */
ad_status ad_pretrained_copy(const char *folder, const char *to) AD_CHECKED;

#endif
