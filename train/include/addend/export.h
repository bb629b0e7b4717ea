/* Writes a run's weights in the form that Hugging Face Transformers reads.
 *
 * For users. Any thread may call these functions, one at a time for one folder. */
#ifndef ADDEND_EXPORT_H
#define ADDEND_EXPORT_H
#include <stdint.h>
#include "addend/dtype.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_export_options {
  size_t size; /* sizeof(ad_export_options) */
  /* dtype of all written tensors; 0: the dtype of the files that the run read (model.from) or, if it read none, of the
   * run */
  ad_dtype dtype;
  int overwrite; /* 1: replaces an earlier export in the folder; 0: a folder with files is AD_INVALID */
  /* most bytes of tensors in one file, unless a single tensor is larger; 0: 5 GB, as in Transformers */
  int64_t shard_bytes;
} ad_export_options;

/* The result of an export. */
typedef struct ad_exported {
  const char *architecture; /* name of the architecture in Transformers: "LlamaForCausalLM" */
  int64_t steps;            /* number of training steps taken; -1: not known, because run.json does not have it */
  int64_t tensors, bytes;   /* number of the tensors, and their bytes */
  int64_t files;            /* number of files with weights */
} ad_exported;

/* Writes `folder` so that AutoModelForCausalLM.from_pretrained loads it: config.json, model.safetensors or its
 * shards with an index, and the tokenizer's files and generation_config.json if the run has them. `run` is the
 * folder of a training. The weights are those of weights.safetensors or, if the run ended without that file, of its
 * newest usable checkpoint. A run with model.from keeps the architecture that it began with. Any other run gets an
 * architecture that computes what its recipe says; if there is none, AD_INVALID names, for each architecture, the
 * recipe key that it cannot express. Files have temporary names until all of them are on disk. AD_IO; AD_INVALID for
 * a folder with other files, and for a run of another program. `out` may be NULL. Local. */
AD_API AD_CHECKED ad_status ad_export(const char *run, const char *folder, const ad_export_options *options,
                                      ad_exported *out);

#if defined(__cplusplus)
}
#endif
#endif
