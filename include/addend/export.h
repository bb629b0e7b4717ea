/* Writing a run's weights as Hugging Face Transformers reads them. */
#ifndef ADDEND_EXPORT_H
#define ADDEND_EXPORT_H
#include <stdint.h>
#include "addend/dtype.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct ad_export_options {
  size_t size;         /* sizeof(ad_export_options) */
  ad_dtype dtype;      /* of all tensors; 0: as they were read (model.from), or as the run keeps them */
  int overwrite;       /* 1: an earlier export in the folder makes way; else a folder that has files is AD_INVALID */
  int64_t shard_bytes; /* of tensors in one file at most, but for a single one; 0: 5 GB, as Transformers has it */
} ad_export_options;

/* What was written. */
typedef struct ad_exported {
  const char *architecture; /* "LlamaForCausalLM" */
  int64_t steps;            /* that were trained; -1: run.json does not say */
  int64_t tensors, bytes;   /* of the tensors */
  int64_t files;            /* with weights */
} ad_exported;

/* Writes `folder`, which AutoModelForCausalLM.from_pretrained loads: config.json, model.safetensors or its shards with
 * an index, and the tokenizer's files and generation_config.json where the run has them. `run` is the folder of a
 * training; its weights are those of weights.safetensors or, where it ended without them, of its newest usable
 * checkpoint. A run with model.from is of the architecture it began with; another gets the one that computes what its
 * keys say, and AD_INVALID names, for each, the key that it cannot express. What is written has another name until all
 * of it is on disk. AD_IO; AD_INVALID for a folder that has other files, and a run of another program. `out` may be
 * NULL. Local. */
AD_API AD_CHECKED ad_status ad_export(const char *run, const char *folder, const ad_export_options *options,
                                      ad_exported *out);

#if defined(__cplusplus)
}
#endif
#endif
